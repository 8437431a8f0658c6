// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/config/document/document.h"
#include "lockstep/config/settings/setting_table.h"

namespace lockstep::config {

/// A value and its origin.
struct Setting {
  std::string text;  ///< Empty: not set.
  std::string
      origin;  ///< "--max-restarts", "LOCKSTEP_MAX_RESTARTS", "/a/config.yaml:4:1", "default".
};

/// Values of settings, in a file's form. Missing or empty ones are not set.
struct ConfigValues {
  std::map<std::string, std::string> settings;
  std::map<std::string, std::string> variables;  ///< Those of `env`.
};

/// One flag of a command line.
struct FlagValue {
  std::string setting;  ///< One of all_settings.
  std::string flag;     ///< Its name in messages: "--max-restarts".
  std::string value;
};

/// The settings of a job, all checked. Names are those of all_settings; another name or type is a
/// bug in Lockstep.
class Settings {
 public:
  /// Returns a setting of any type but kVariables.
  const Setting& at(const std::string& name) const;
  bool is_set(const std::string& name) const { return !at(name).text.empty(); }

  /// Returns nothing if the setting is not set, or is a word; see `text`.
  std::optional<int64_t> integer(const std::string& name) const;
  std::optional<double> seconds(const std::string& name) const;
  std::optional<std::string> text(const std::string& name) const;
  bool boolean(const std::string& name) const;
  /// Returns the setting `env`, by name.
  const std::map<std::string, Setting>& variables() const { return variables_; }

 private:
  friend Settings resolve(
      const std::vector<FlagValue>& flags,
      const Environment& environment,
      const std::optional<Document>& file);

  std::map<std::string, Setting> settings_;
  std::map<std::string, Setting> variables_;
};

/// Takes each setting from the first source that has it: flags, environment, file, default; for
/// `env`, each variable separately. The complete file is checked, even overridden values.
///
/// Throws ConfigError that names flag, variable or file:line:column for an invalid value, and for a
/// machine_rank that is not below num_machines. It does so, too, for a key of the file that is
/// unknown, without a value, or of another type. Quoted text is not a number or boolean.
Settings resolve(
    const std::vector<FlagValue>& flags,
    const Environment& environment,
    const std::optional<Document>& file);

/// Returns all errors that `resolve` finds in the file; empty if it is valid.
std::vector<std::string> faults_of(const Document& file);

/// Returns the values of a file, unchanged. Throws ConfigError as `resolve`.
ConfigValues values_of(const Document& file);

/// Replaces a leading `~/` of a path by the HOME of `environment`; throws ConfigError if that is
/// not set.
std::string expand_home(const std::string& path, const Environment& environment);

}  // namespace lockstep::config
