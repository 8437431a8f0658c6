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

/// `lockstep env`: what a bug report needs to say of a machine.
class EnvCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit EnvCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Prints the report; returns the exit code. ConfigError for words, of which it takes none.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App* command_;  // [not null]
  bool json_ = false;
  bool explain_ = false;
};

/// A program that others are started with or by.
struct ProgramFound {
  std::string name;
  std::string path;     ///< Empty if there is none.
  std::string version;  ///< The first line of what it says; empty if it says nothing.
};

/// What the configuration says, in the environment or in a file: all but defaults.
struct Configured {
  struct Value {
    std::string name;
    std::string value;
    std::string origin;
  };
  std::string file;  ///< That was read; empty if there is none.
  std::vector<Value> values;
  std::string fault;  ///< Why it is not valid; empty if it is.
};

/// All that the report is made of. Gathered first, so that tests can make it up.
struct EnvFacts {
  Machine machine;
  std::vector<ProgramFound> programs;
  std::string python;  ///< The interpreter; empty if there is none.
  std::string python_version;
  std::string torch_version;  ///< Of the torch that Python imports; empty if it has none.
  std::string nvidia_smi;     ///< What it lists; empty if it is absent or does not answer.
  std::map<std::string, std::string> variables;  ///< Those that matter; secrets are hidden.
  Configured configured;
};

/// Looks at the machine, and asks programs for their versions: at most a few seconds, each being
/// given up on if it does not answer.
EnvFacts gather_env_facts();

/// The same for the configuration that `lockstep launch` would find.
Configured configured_values(const Environment& environment);

/// The variables of `environment` (NAME=value) that decide how a job runs. Values whose name says
/// that they are secret are replaced, and so are passwords within addresses.
std::map<std::string, std::string> relevant_variables(const std::vector<std::string>& environment);

Report env_report(const EnvFacts& facts);

}  // namespace lockstep::cli
