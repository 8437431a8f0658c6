// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/cpu_bind.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/cores.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/config/settings/setting_table.h"

namespace lockstep::launcher {
namespace {

/// Returns the first line of a file; empty if the file does not exist.
std::string line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns the memory node of each core that the kernel lists.
std::map<int, int> nodes_of_cores(const std::filesystem::path& system) {
  std::map<int, int> nodes;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(system / "node", none)) {
    const std::string name = entry.path().filename();
    const auto node = name.starts_with("node") ? parse_integer(name.substr(4)) : std::nullopt;
    if (node) {
      for (const int core : parse_core_list(line_of(entry.path() / "cpulist"))) {
        nodes[core] = static_cast<int>(*node);
      }
    }
  }
  return nodes;
}

/// Returns the first number of part `index` of `parts` equal parts of the numbers below `size`.
size_t share_begin(size_t size, size_t index, size_t parts) {
  return size * index / parts;
}

std::vector<int> ids_between(const std::vector<Core>& cores, size_t begin, size_t end) {
  std::vector<int> ids;
  for (size_t i = begin; i < end; ++i) {
    ids.push_back(cores[i].id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

config::CpuBind parse_cpu_bind(const std::string& text, const std::string& flag) {
  const std::vector<std::string> names = config::choice_values(*config::find_setting("cpu_bind"));
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "invalid value '{}' for {}; expected one of {}{}",
            text,
            flag,
            fmt::join(names, ", "),
            did_you_mean(text, names)));
  }
  return static_cast<config::CpuBind>(found - names.begin());
}

std::vector<Core> allowed_cores(const std::string& system) {
  const std::map<int, int> nodes = nodes_of_cores(system);
  std::vector<Core> cores;
  for (const int id : available_core_ids()) {
    const auto node = nodes.find(id);
    const std::vector<int> siblings = parse_core_list(
        line_of(fmt::format("{}/cpu/cpu{}/topology/thread_siblings_list", system, id)));
    cores.push_back(
        {.id = id,
         .node = node == nodes.end() ? 0 : node->second,
         .sibling = siblings.empty() ? id : siblings.front()});
  }
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.node, a.sibling, a.id) < std::tie(b.node, b.sibling, b.id);
  });
  return cores;
}

std::vector<std::vector<int>> bind_plan(
    config::CpuBind bind, const std::vector<Core>& cores, int ranks) {
  std::vector<std::vector<int>> plan;
  if (bind == config::CpuBind::kNone || cores.empty()) {
    return plan;
  }
  std::vector<size_t> borders;  // The first core of each part that is not split, and the end.
  for (size_t i = 0; i < cores.size(); ++i) {
    if (bind == config::CpuBind::kCores || i == 0 || cores[i].node != cores[i - 1].node) {
      borders.push_back(i);
    }
  }
  const size_t parts = borders.size();
  borders.push_back(cores.size());
  const auto count = static_cast<size_t>(ranks);
  for (size_t rank = 0; rank < count; ++rank) {
    const size_t begin = share_begin(parts, rank, count);
    const size_t end = std::max(begin + 1, share_begin(parts, rank + 1, count));
    plan.push_back(ids_between(cores, borders[begin], borders[end]));
  }
  return plan;
}

std::vector<int> parse_core_list(const std::string& text) {
  constexpr int64_t kMostCores = 1 << 20;
  std::vector<int> ids;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const auto first = parse_integer(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_integer(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMostCores) {
      return {};
    }
    for (int64_t id = *first; id <= *last; ++id) {
      ids.push_back(static_cast<int>(id));
    }
  }
  return ids;
}

std::string core_list(const std::vector<int>& ids) {
  std::string text;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) {
      ++end;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ",", ids[i]);
    if (end - i > 1) {
      text += fmt::format("-{}", ids[end - 1]);
    }
    i = end;
  }
  return text;
}

}  // namespace lockstep::launcher
