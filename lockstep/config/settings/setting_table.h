// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/config/settings/launch_flags.h"

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

/// A value that a setting may have, for instance {"1", "the optimizer's state", "stage 1"}.
struct SettingChoice {
  std::string value;
  std::string description = {};  ///< Shown by `lockstep config`, as is the label.
  std::string label = {};        ///< Empty: the value.
};

/// The member of JobOptions that holds a setting's value.
using JobMember = std::variant<
    std::monostate,
    bool JobOptions::*,
    int JobOptions::*,
    double JobOptions::*,
    std::string JobOptions::*,
    CpuBind JobOptions::*,
    std::vector<int> JobOptions::*,
    std::vector<std::string> JobOptions::*,
    std::vector<EnvVariable> JobOptions::*>;

/// The member of LaunchFlags that holds a setting's text.
using TextMember = std::variant<
    std::monostate,
    bool LaunchFlags::*,
    std::string LaunchFlags::*,
    std::vector<std::string> LaunchFlags::*>;

/// An environment variable that the ranks get from a setting.
struct RankVariable {
  std::string name;              ///< One that ends in _MS gets milliseconds.
  std::string true_value = "1";  ///< The value for a boolean that is true.
};

/// Describes one setting of `lockstep launch`. The command line, the configuration file, the
/// environment, `lockstep config`, the ranks' environment, the messages between launchers, and
/// docs/configuration.md read this row. The default is that of `member` in JobOptions. Three things
/// are outside of the table: the rules between settings (cli::job_options), the keys of
/// Accelerate's files (config/import), and the arguments of Python's notebook_launcher.
struct SettingSpec {
  std::string name = {};  ///< Its key in a file; empty: only a flag.
  SettingType type = SettingType::kText;
  std::string description = {};  ///< One line, without a full stop.
  std::string group = {};        ///< Its heading in `lockstep launch --help`.
  std::string flags = {};        ///< All spellings: "-r,--redirects".
  std::string placeholder = {};  ///< The flag's value in `--help`: "N".
  /// Environment variables; the first that is set counts. One whose name ends in _MS holds
  /// milliseconds.
  std::vector<std::string> variables = {};
  std::string unset = {};  ///< The behaviour without a value; empty: `default_value` applies.
  double min = 0;
  double max = 0;
  double flag_min = min;  ///< The range of the flag, which may differ from min to max.
  double flag_max = max;
  std::vector<SettingChoice> choices = {};
  /// Returns "" for a valid text, else a description of the valid texts. May be null.
  std::string (*check)(const std::string& text) = nullptr;
  JobMember member = {};
  /// The member with the text, which cli::job_options() parses into `member`.
  TextMember text = {};
  /// Stores a text of the file or the environment. Null: it is converted to the member's type.
  void (*set)(const std::string& text, LaunchFlags& flags) = nullptr;
  /// Other flags that override the file and the environment: "--standalone".
  std::vector<std::string> overriding_flags = {};
  std::vector<RankVariable> rank_variables = {};
  bool is_sent_to_hosts = true;  ///< The launchers of other hosts get the member's value.
  std::string question = {};     ///< The question of `lockstep config`.

  // Computed from the fields above.
  std::string flag = {};           ///< The spelling like the name, or the first long one.
  std::string default_value = {};  ///< The text of `member` in JobOptions; empty with `unset`.
};

/// Returns every setting, in the order of display, including those that are only flags.
/// Thread-safe.
const std::vector<SettingSpec>& all_flags();

/// Returns those that have a key in a file. Thread-safe.
const std::vector<SettingSpec>& all_settings();

/// Returns null for an unknown name.
const SettingSpec* find_setting(const std::string& name);

std::vector<std::string> setting_names();

/// Stores a valid text of the file or the environment.
void set_value(const SettingSpec& spec, const std::string& text, LaunchFlags& flags);

/// Returns the values of all choices; non_integer_choices() omits integers.
std::vector<std::string> choice_values(const SettingSpec& spec);
std::vector<std::string> non_integer_choices(const SettingSpec& spec);

/// Describes the values of a setting: "a whole number from 0 to 1000, or one of auto, cpu, gpu".
std::string expected_of(const SettingSpec& spec);

/// Throws ConfigError `[where] invalid value '...' for <subject>; expected ...` unless `text` is a
/// value of the setting, which must not be of kVariables.
void check_value(
    const SettingSpec& spec,
    const std::string& text,
    const std::string& where,
    const std::string& subject);

/// Throws ConfigError unless `name` consists of letters, digits and _ (no digit first), and
/// `lockstep launch` does not set it itself.
void check_variable_name(const std::string& name, const std::string& where);

/// Renders the table of docs/configuration.md.
std::string render_setting_table();

}  // namespace lockstep::config
