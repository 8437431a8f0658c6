// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::config {

enum class SettingType {
  kInteger,    ///< An integer_value from `min` to `max`, or one of `choices`.
  kChoice,     ///< One of `choices`.
  kBoolean,    ///< A truth_value.
  kSeconds,    ///< A decimal_number from `min` to `max`.
  kPath,       ///< A file or folder; a leading `~/` is the home folder.
  kText,       ///< Text that `check` accepts.
  kVariables,  ///< Names and texts: a map in a file, NAME=VALUE for a flag.
};

/// Describes one setting of `lockstep launch`.
struct SettingSpec {
  std::string name = {};  ///< Its key in a file.
  SettingType type = SettingType::kText;
  std::string what = {};  ///< A one-line description.
  std::string flag = {};  ///< The option of `lockstep launch`.
  /// Environment variables; the first that is set counts. One whose name ends in _MS holds
  /// milliseconds, whatever the unit of the setting.
  std::vector<std::string> variables = {};
  std::string default_value = {};  ///< Empty: there is none, and `unset` applies.
  std::string unset = {};          ///< The behaviour without a value.
  int64_t min = 0;
  int64_t max = 0;
  std::vector<std::string> choices = {};
  /// Returns the expected values for an invalid text; empty if it is valid. May be null.
  std::string (*check)(const std::string& text) = nullptr;
};

/// Returns every setting, in the order of display. Thread-safe.
const std::vector<SettingSpec>& all_settings();

/// Returns null for an unknown name.
const SettingSpec* find_setting(const std::string& name);

std::vector<std::string> setting_names();

/// Describes its values: "a whole number from 0 to 1000, or one of auto, cpu, gpu".
std::string expected_of(const SettingSpec& spec);

/// Throws ConfigError `[where] <subject> makes no sense; got ..., expected ...` unless `text` is a
/// value of the setting, which must not be of kVariables.
void check_value(
    const SettingSpec& spec,
    const std::string& text,
    const std::string& where,
    const std::string& subject);

/// Throws the same unless a program may have a variable of that name: letters, digits and _, and
/// none that `lockstep launch` sets.
void check_variable_name(const std::string& name, const std::string& where);

}  // namespace lockstep::config
