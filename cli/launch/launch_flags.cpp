// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_flags.h"

#include <type_traits>
#include <variant>

#include <fmt/format.h>

#include "cli/common/choices.h"
#include "cli/common/numbers.h"
#include "lockstep/base/error.h"
#include "lockstep/config/settings/setting_table.h"

namespace lockstep::cli {
namespace {

using config::SettingSpec;
using config::SettingType;

std::string help_of(const SettingSpec& spec) {
  const std::string& value = spec.unset.empty() ? spec.default_value : spec.unset;
  return spec.type == SettingType::kBoolean || value.empty()
             ? spec.description
             : fmt::format("{} (default: {})", spec.description, value);
}

void add_option(CLI::App& command, const SettingSpec& spec, bool& value) {
  command.add_flag(spec.flags, value, help_of(spec))->group(spec.group);
}

template <typename Value>
void add_option(CLI::App& command, const SettingSpec& spec, Value& value) {
  CLI::Option* const option = command.add_option(spec.flags, value, help_of(spec));
  option->type_name(spec.placeholder)->group(spec.group);
  const bool is_parsed_later = !std::holds_alternative<std::monostate>(spec.text);
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
    option->allow_extra_args(false);
  } else if constexpr (std::is_same_v<Value, int>) {
    option->check(
        integer_between(static_cast<int64_t>(spec.flag_min), static_cast<int64_t>(spec.flag_max)));
  } else if constexpr (std::is_same_v<Value, double>) {
    option->check(seconds_between(spec.flag_min, spec.flag_max));
  } else if (!spec.choices.empty() && !is_parsed_later) {
    option->check(one_of(config::choice_values(spec)));
  }
}

template <typename Member>
constexpr bool kIsFlagValue = std::is_same_v<Member, int config::JobOptions::*> ||
                              std::is_same_v<Member, bool config::JobOptions::*> ||
                              std::is_same_v<Member, double config::JobOptions::*> ||
                              std::is_same_v<Member, std::string config::JobOptions::*>;

}  // namespace

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  for (const SettingSpec& spec : config::all_flags()) {
    if (std::holds_alternative<std::monostate>(spec.text)) {
      std::visit(
          [&](auto member) {
            if constexpr (kIsFlagValue<decltype(member)>) {
              add_option(command, spec, flags.options.*member);
            } else {
              LOCKSTEP_ASSERT(false, "a flag without a member of JobOptions: " + spec.flags);
            }
          },
          spec.member);
    } else {
      std::visit(
          [&](auto member) {
            if constexpr (!std::is_same_v<decltype(member), std::monostate>) {
              add_option(command, spec, flags.*member);
            }
          },
          spec.text);
    }
  }
}

void refuse_launch(const std::string& what) {
  throw ConfigError("lockstep launch", what);
}

}  // namespace lockstep::cli
