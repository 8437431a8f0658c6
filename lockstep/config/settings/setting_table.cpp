// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/settings/setting_table.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/text/words.h"
#include "lockstep/config/document/scalars.h"
#include "lockstep/config/settings/setting_rows.h"

namespace lockstep::config {
namespace {

using Type = SettingType;

/// Returns the text of the default of `spec.member`.
std::string default_text(const SettingSpec& spec) {
  static const JobOptions defaults;
  return std::visit(
      [&](auto member) -> std::string {
        if constexpr (std::is_same_v<decltype(member), std::monostate>) {
          return "";
        } else {
          using Value = std::decay_t<decltype(defaults.*member)>;
          if constexpr (std::is_same_v<Value, CpuBind>) {
            return spec.choices.at(static_cast<size_t>(defaults.*member)).value;
          } else if constexpr (std::is_arithmetic_v<Value>) {
            return fmt::format("{}", defaults.*member);
          } else {
            return "";
          }
        }
      },
      spec.member);
}

/// Returns the spelling of the setting's flag that messages and documentation use.
std::string main_flag(const SettingSpec& spec) {
  const std::vector<std::string> flags = split(spec.flags, ',');
  std::string like_name = "--" + spec.name;
  std::replace(like_name.begin(), like_name.end(), '_', '-');
  if (std::find(flags.begin(), flags.end(), like_name) != flags.end()) {
    return like_name;
  }
  const auto first_long = std::find_if(
      flags.begin(), flags.end(), [](const std::string& flag) { return flag.starts_with("--"); });
  LOCKSTEP_ASSERT(first_long != flags.end(), "a setting without a long flag: " + spec.name);
  return *first_long;
}

std::vector<SettingSpec> make_flags() {
  const std::pair<const char*, std::vector<SettingSpec> (*)()> groups[] = {
      {"Job", job_rows},
      {"Several hosts", host_rows},
      {"Monitoring", monitoring_rows},
      {"Output", output_rows},
      {"Environment", environment_rows}};
  std::vector<SettingSpec> all;
  for (const auto& [group, rows] : groups) {
    for (SettingSpec& spec : rows()) {
      spec.group = group;
      spec.flag = main_flag(spec);
      spec.default_value = spec.name.empty() || !spec.unset.empty() ? "" : default_text(spec);
      all.push_back(std::move(spec));
    }
  }
  return all;
}

/// Describes the values for docs/configuration.md: "whole number, 1 to 64, or `auto`, `cpu`".
std::string values_cell(const SettingSpec& spec) {
  const auto quoted = [](const std::vector<std::string>& words) {
    return words.empty() ? "" : fmt::format("`{}`", fmt::join(words, "`, `"));
  };
  switch (spec.type) {
    case Type::kInteger: {
      const std::string words = quoted(non_integer_choices(spec));
      return fmt::format(
          "whole number, {} to {}{}{}",
          static_cast<int64_t>(spec.min),
          static_cast<int64_t>(spec.max),
          words.empty() ? "" : ", or ",
          words);
    }
    case Type::kChoice:
      return quoted(choice_values(spec));
    case Type::kBoolean:
      return "`true`, `false`";
    case Type::kSeconds:
      return fmt::format(
          "seconds, {} to {}", static_cast<int64_t>(spec.min), static_cast<int64_t>(spec.max));
    case Type::kPath:
      return "path";
    case Type::kText:
      return "text";
    case Type::kVariables:
      return "map of names and values";
  }
  LOCKSTEP_ASSERT(false, "a type of setting without a description");
}

}  // namespace

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

bool is_number_in(const std::string& text, int64_t min, int64_t max) {
  const auto number = integer_value(text);
  return number && *number >= min && *number <= max;
}

const std::vector<SettingSpec>& all_flags() {
  static const std::vector<SettingSpec> flags = make_flags();
  return flags;
}

const std::vector<SettingSpec>& all_settings() {
  static const std::vector<SettingSpec> settings = [] {
    std::vector<SettingSpec> with_names;
    for (const SettingSpec& spec : all_flags()) {
      if (!spec.name.empty()) {
        with_names.push_back(spec);
      }
    }
    return with_names;
  }();
  return settings;
}

const SettingSpec* find_setting(const std::string& name) {
  for (const SettingSpec& spec : all_settings()) {
    if (spec.name == name) {
      return &spec;
    }
  }
  return nullptr;
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const SettingSpec& spec : all_settings()) {
    names.push_back(spec.name);
  }
  return names;
}

void set_value(const SettingSpec& spec, const std::string& text, LaunchFlags& flags) {
  if (spec.set != nullptr) {
    spec.set(text, flags);
    return;
  }
  if (const auto* const member = std::get_if<std::string LaunchFlags::*>(&spec.text)) {
    flags.*(*member) = text;
    return;
  }
  std::visit(
      [&](auto member) {
        if constexpr (std::is_same_v<decltype(member), bool JobOptions::*>) {
          flags.options.*member = truth_value(text).value();
        } else if constexpr (std::is_same_v<decltype(member), int JobOptions::*>) {
          flags.options.*member = static_cast<int>(integer_value(text).value());
        } else if constexpr (std::is_same_v<decltype(member), double JobOptions::*>) {
          flags.options.*member = decimal_number(text).value();
        } else if constexpr (std::is_same_v<decltype(member), std::string JobOptions::*>) {
          flags.options.*member = text;
        } else {
          LOCKSTEP_ASSERT(false, "a setting whose text has no member: " + spec.name);
        }
      },
      spec.member);
}

std::vector<std::string> choice_values(const SettingSpec& spec) {
  std::vector<std::string> values;
  for (const SettingChoice& choice : spec.choices) {
    values.push_back(choice.value);
  }
  return values;
}

std::vector<std::string> non_integer_choices(const SettingSpec& spec) {
  std::vector<std::string> words = choice_values(spec);
  std::erase_if(words, [](const std::string& word) { return integer_value(word).has_value(); });
  return words;
}

std::string render_setting_table() {
  std::string table =
      "| key | flag | environment | values | default | description |\n|---|---|---|---|---|---|\n";
  for (const SettingSpec& spec : all_settings()) {
    table += fmt::format(
        "| `{}` | `{}` |{} | {} | {} | {} |\n",
        spec.name,
        spec.flag,
        spec.variables.empty() ? "" : fmt::format(" `{}`", fmt::join(spec.variables, "`, `")),
        values_cell(spec),
        spec.unset.empty() ? "`" + spec.default_value + "`" : "not set: " + spec.unset,
        spec.description);
  }
  return table;
}

}  // namespace lockstep::config
