// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/rank_environment.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>
#include <string_view>
#include <sys/random.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/variable_name.h"

namespace lockstep::launcher {

void set_variable(std::vector<EnvVariable>& variables, EnvVariable variable) {
  const auto same = std::find_if(variables.begin(), variables.end(), [&](const EnvVariable& other) {
    return other.name == variable.name;
  });
  if (same == variables.end()) {
    variables.push_back(std::move(variable));
  } else {
    same->value = std::move(variable.value);
  }
}

std::vector<EnvVariable> rank_variables(const JobLayout& layout, int local_rank) {
  const int global_rank = layout.first_rank + local_rank;
  const std::string rank = std::to_string(global_rank);
  const std::string world = std::to_string(layout.world_size);
  std::vector<EnvVariable> variables = {
      {"RANK", rank},
      {"WORLD_SIZE", world},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(layout.local_size)},
      {"MASTER_ADDR", layout.master_addr},
      {"MASTER_PORT", std::to_string(layout.master_port)},
      {"GROUP_RANK", std::to_string(layout.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(layout.nodes)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world},
      {"ROLE_NAME", layout.role},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(layout.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(layout.max_restarts)},
      {"TORCHELASTIC_RUN_ID", layout.run_id},
      {"LOCKSTEP_LAUNCHER", "1"},
      {"OMP_NUM_THREADS", layout.omp_num_threads},
  };
  if (global_rank == 0 && layout.terminal_columns > 0) {
    variables.push_back({"LOCKSTEP_TERMINAL", std::to_string(layout.terminal_columns)});
  }
  if (layout.resume) {
    variables.push_back({"LOCKSTEP_RESUME", "1"});
  }
  for (const EnvVariable& variable : layout.extra) {
    set_variable(variables, variable);
  }
  return variables;
}

std::vector<std::string> rank_environment(
    const std::vector<std::string>& inherited, const JobLayout& layout, int local_rank) {
  const std::vector<EnvVariable> variables = rank_variables(layout, local_rank);
  std::set<std::string_view> set;
  for (const EnvVariable& variable : variables) {
    set.insert(variable.name);
  }
  std::vector<std::string> environment;
  bool buffering_said = set.count("PYTHONUNBUFFERED") != 0;
  for (const std::string& entry : inherited) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    buffering_said = buffering_said || name == "PYTHONUNBUFFERED";
    if (!is_launcher_variable(name) && set.count(name) == 0) {
      environment.push_back(entry);
    }
  }
  for (const EnvVariable& variable : variables) {
    environment.push_back(fmt::format("{}={}", variable.name, variable.value));
  }
  if (layout.is_python && !buffering_said) {
    environment.emplace_back("PYTHONUNBUFFERED=1");
  }
  return environment;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

std::string random_hex(size_t bytes) {
  std::string bits(bytes, '\0');
  // As few as anybody wants come whole, or not at all.
  if (::getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bytes)) {
    throw Error(
        "lockstep launch",
        fmt::format("random numbers are not available; {}", std::strerror(errno)));
  }
  std::string text;
  for (const char byte : bits) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

}  // namespace lockstep::launcher
