// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/common/report.h"
#include "lockstep/base/env.h"
#include "lockstep/base/host/machine.h"

namespace lockstep::cli {

/// The command `lockstep env`: shows the facts of a machine for a bug report.
class EnvCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit EnvCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Prints the report, and returns the exit code. Throws ConfigError for arguments.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* command_;  // [not null]
  bool json_ = false;
  bool explain_ = false;
};

/// A program that starts or runs others.
struct ProgramFound {
  std::string name;
  std::string path;     ///< Empty if it was not found.
  std::string version;  ///< The first line of its output; may be empty.
};

/// A Python package whose name may mean Lockstep.
struct PythonModule {
  std::string name;
  std::string version;  ///< As libraries see it.
  std::string folder;   ///< Empty if it cannot be imported.

  /// Returns whether importing it gives Lockstep's module.
  bool is_lockstep() const { return folder.ends_with("/lockstep/alias/packages/" + name); }
};

/// The settings in the environment and in the configuration file, without defaults.
struct Configured {
  struct Value {
    std::string name;
    std::string value;
    std::string origin;
  };
  std::string file;  ///< The file that was read; empty: none.
  std::vector<Value> values;
  std::string fault;  ///< The fault of an invalid configuration; empty if it is valid.
};

/// The data of the report.
struct EnvFacts {
  Machine machine;
  std::vector<ProgramFound> programs;
  std::string python;  ///< The interpreter; empty if it was not found.
  std::string python_version;
  std::string torch_version;  ///< Python's torch; empty if it has none.
  std::vector<PythonModule> modules = {{"accelerate", "", ""}, {"deepspeed", "", ""}};
  std::string nvidia_smi;  ///< The output of `nvidia-smi -L`; empty if that failed.
  std::map<std::string, std::string> variables;  ///< See relevant_variables().
  Configured configured;
};

/// Collects the facts of this machine. Runs programs for their versions, each for a few seconds at
/// most.
EnvFacts gather_env_facts();

/// Returns the configuration that `lockstep launch` would use.
Configured configured_values(const Environment& environment);

/// Returns the variables of `environment` (NAME=value) that affect a job. Secret values, and
/// passwords in URLs, are replaced.
std::map<std::string, std::string> relevant_variables(const std::vector<std::string>& environment);

/// Formats the facts as text and JSON.
Report env_report(const EnvFacts& facts);

}  // namespace lockstep::cli
