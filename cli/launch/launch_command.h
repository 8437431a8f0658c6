// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/launch/launch_flags.h"
#include "cli/launch/torchrun_variables.h"

namespace lockstep::cli {

/// The command `lockstep launch`: runs a program as several ranks.
class LaunchCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit LaunchCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Appends torchrun's PET_* variables as options to `words`, the input of CLI::App::parse, if the
  /// words call this command. Throws ConfigError as add_torchrun_variables() does.
  std::vector<VariableOption> add_variables(std::vector<std::string>& words) const;
  /// Runs `program`, its name and arguments, or prints the plan for --dry-run; returns the job's
  /// exit code. Throws ConfigError for invalid or contradictory options.
  int run(const std::vector<std::string>& program) const;

 private:
  launcher::Machine machine() const;
  int print_plan(const std::vector<std::string>& program) const;

  CLI::App* command_;  // [not null]
  LaunchFlags flags_;
};

}  // namespace lockstep::cli
