// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/config/document.h"
#include "lockstep/config/setting_table.h"

namespace lockstep::config {

/// A value, and who said it.
struct Setting {
  std::string text;  ///< Empty: not set.
  std::string
      origin;  ///< "--max-restarts", "LOCKSTEP_MAX_RESTARTS", "/a/config.yaml:4:1", "default".
};

/// Values of settings, in the form in which a file has them. What is left out, or empty, is not
/// set.
struct ConfigValues {
  std::map<std::string, std::string> settings;
  std::map<std::string, std::string> variables;  ///< Those of `env`.
};

/// One flag of a command line.
struct FlagValue {
  std::string setting;  ///< Which of all_settings it sets.
  std::string flag;     ///< As messages name it: "--max-restarts".
  std::string value;
};

/// What a job is to be started with. Every value has been checked. Names are those of all_settings;
/// another, or one of another type, is a fault of Lockstep.
class Settings {
 public:
  /// Of any type but kVariables.
  const Setting& at(const std::string& name) const;
  bool is_set(const std::string& name) const { return !at(name).text.empty(); }

  /// Nothing if it is not set. Of a kInteger also if it is a word, see `text`.
  std::optional<int64_t> integer(const std::string& name) const;
  std::optional<double> seconds(const std::string& name) const;
  std::optional<std::string> text(const std::string& name) const;
  bool boolean(const std::string& name) const;
  /// The setting `env`, by name.
  const std::map<std::string, Setting>& variables() const { return variables_; }

 private:
  friend Settings resolve(
      const std::vector<FlagValue>& flags,
      const Environment& environment,
      const std::optional<Document>& file);

  std::map<std::string, Setting> settings_;
  std::map<std::string, Setting> variables_;
};

/// Takes each setting from the first that says something: flags, the environment, the file, the
/// default. Of `env`, each variable by itself. All of the file is checked, whatever overrides it.
///
/// ConfigError that names flag, variable or file:line:column for a value that makes no sense, for a
/// key of the file that is unknown (with the likeliest correction), has no value or one of another
/// type, and for a machine_rank that num_machines has no place for. Text in quotes is no number and
/// no truth value.
Settings resolve(
    const std::vector<FlagValue>& flags,
    const Environment& environment,
    const std::optional<Document>& file);

/// All that `resolve` would say of the file alone; empty if it is right.
std::vector<std::string> faults_of(const Document& file);

/// The values that stand in a file, as they stand there.
/// ConfigError as `resolve`.
ConfigValues values_of(const Document& file);

/// `~/` at the begin of a path as the HOME of `environment`; ConfigError if that is not set.
std::string expand_home(const std::string& path, const Environment& environment);

}  // namespace lockstep::config
