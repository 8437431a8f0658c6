// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::config {

enum class SettingType {
  kInteger,    ///< A integer_value from `min` to `max`, or one of `choices`.
  kChoice,     ///< One of `choices`.
  kBoolean,    ///< A truth_value.
  kSeconds,    ///< A decimal_number from `min` to `max`.
  kPath,       ///< A file or folder; `~/` at its begin is the home folder.
  kText,       ///< What `check` lets pass.
  kVariables,  ///< Names and texts: a map in a file, NAME=VALUE for a flag.
};

/// What is known of one setting of `lockstep launch`.
struct SettingSpec {
  std::string name = {};  ///< Its key in a file.
  SettingType type = SettingType::kText;
  std::string what = {};  ///< One line of prose.
  std::string flag = {};  ///< Of `lockstep launch`.
  /// Environment variables; the first that is set counts. One whose name ends in _MS holds
  /// milliseconds, whatever the setting is in.
  std::vector<std::string> variables = {};
  std::string default_value = {};  ///< Empty: without a value it is not set, and `unset` happens.
  std::string unset = {};          ///< What happens then.
  int64_t min = 0;
  int64_t max = 0;
  std::vector<std::string> choices = {};
  /// Says what was expected of a text; nothing if it will do. May be null.
  std::string (*check)(const std::string& text) = nullptr;
};

/// Every setting, in the order in which they are shown. Thread-safe.
const std::vector<SettingSpec>& all_settings();

/// Null if there is none of that name.
const SettingSpec* find_setting(const std::string& name);

std::vector<std::string> setting_names();

/// What values of it look like: "a whole number from 0 to 1000, or one of auto, cpu, gpu".
std::string expected_of(const SettingSpec& spec);

/// Throws ConfigError `[where] <subject> makes no sense; got ..., expected ...` unless `text` is a
/// value of the setting, which is not of kVariables.
void check_value(
    const SettingSpec& spec,
    const std::string& text,
    const std::string& where,
    const std::string& subject);

/// Throws the same unless a program may be given a variable of that name: letters, digits and _,
/// and none of those that `lockstep launch` sets itself.
void check_variable_name(const std::string& name, const std::string& where);

}  // namespace lockstep::config
