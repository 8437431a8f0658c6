// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/rank_environment.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <sys/random.h>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/variable_name.h"
#include "lockstep/config/settings/setting_table.h"

namespace lockstep::launcher {
namespace {

// Formats an option's value for `variable`; nothing if the option has no value.
std::optional<std::string> text_of(bool value, const config::RankVariable& variable) {
  return value ? std::optional(variable.true_value) : std::nullopt;
}
std::optional<std::string> text_of(int value, const config::RankVariable& /*variable*/) {
  return value > 0 ? std::optional(std::to_string(value)) : std::nullopt;
}
std::optional<std::string> text_of(double seconds, const config::RankVariable& variable) {
  constexpr double kMillisecondsPerSecond = 1000;
  LOCKSTEP_ASSERT(
      variable.name.ends_with("_MS"), "a duration variable must end with _MS: " + variable.name);
  const auto milliseconds = static_cast<int64_t>(std::ceil(seconds * kMillisecondsPerSecond));
  return seconds > 0 ? std::optional(std::to_string(milliseconds)) : std::nullopt;
}
std::optional<std::string> text_of(
    const std::string& value, const config::RankVariable& /*variable*/) {
  return value.empty() ? std::nullopt : std::optional(value);
}

/// Formats the option `spec` for `variable`; nothing if the option has no value or no member.
std::optional<std::string> text_of(
    const config::SettingSpec& spec,
    const config::JobOptions& options,
    const config::RankVariable& variable) {
  return std::visit(
      [&](auto member) -> std::optional<std::string> {
        if constexpr (std::is_same_v<decltype(member), std::monostate>) {
          return std::nullopt;
        } else if constexpr (requires { text_of(options.*member, variable); }) {
          return text_of(options.*member, variable);
        } else {
          LOCKSTEP_ASSERT(false, "the type of an option has no text: " + variable.name);
        }
      },
      spec.member);
}

}  // namespace

std::vector<config::EnvVariable> setting_variables(const config::JobOptions& options) {
  std::vector<config::EnvVariable> variables;
  for (const config::SettingSpec& spec : config::all_flags()) {
    for (const config::RankVariable& variable : spec.rank_variables) {
      if (std::optional<std::string> text = text_of(spec, options, variable)) {
        set_variable(variables, {variable.name, *std::move(text)});
      }
    }
  }
  return variables;
}

std::vector<config::EnvVariable> rank_variables(const HostEnvironment& common, int local_rank) {
  const int global_rank = common.first_rank + local_rank;
  const std::string rank = std::to_string(global_rank);
  const std::string world = std::to_string(common.world_size);
  std::vector<config::EnvVariable> variables = {
      {"RANK", rank},
      {"WORLD_SIZE", world},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(common.local_size)},
      {"MASTER_ADDR", common.master_addr},
      {"MASTER_PORT", std::to_string(common.master_port)},
      {"GROUP_RANK", std::to_string(common.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(common.nodes)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world},
      {"ROLE_NAME", common.role},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(common.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(common.max_restarts)},
      {"TORCHELASTIC_RUN_ID", common.run_id},
      {"LOCKSTEP_LAUNCHER", "1"},
      {"OMP_NUM_THREADS", common.omp_num_threads},
  };
  if (global_rank == 0 && common.terminal_columns > 0) {
    variables.push_back({"LOCKSTEP_TERMINAL", std::to_string(common.terminal_columns)});
  }
  if (common.resume) {
    variables.push_back({"LOCKSTEP_RESUME", "1"});
  }
  for (const config::EnvVariable& variable : common.extra) {
    set_variable(variables, variable);
  }
  return variables;
}

std::vector<std::string> rank_environment(
    const std::vector<std::string>& inherited, const HostEnvironment& common, int local_rank) {
  const std::vector<config::EnvVariable> variables = rank_variables(common, local_rank);
  std::set<std::string_view> set;
  for (const config::EnvVariable& variable : variables) {
    set.insert(variable.name);
  }
  std::vector<std::string> environment;
  bool sets_buffering = set.count("PYTHONUNBUFFERED") != 0;
  for (const std::string& entry : inherited) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    sets_buffering = sets_buffering || name == "PYTHONUNBUFFERED";
    if (!is_launcher_variable(name) && set.count(name) == 0) {
      environment.push_back(entry);
    }
  }
  for (const config::EnvVariable& variable : variables) {
    environment.push_back(fmt::format("{}={}", variable.name, variable.value));
  }
  if (common.is_python && !sets_buffering) {
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
  // getrandom() returns up to 256 bytes completely, or fails.
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
