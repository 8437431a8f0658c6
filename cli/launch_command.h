// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/launch/job.h"

namespace lockstep::cli {

/// `lockstep launch`: runs a program as several ranks on this machine.
class LaunchCommand {
 public:
  /// Adds the command to `app`, which must not outlive this.
  explicit LaunchCommand(CLI::App& app);

  bool was_given() const { return command_->parsed(); }
  /// Runs `program`, its name and arguments; returns the job's exit code. ConfigError for what
  /// makes no sense.
  int run(const std::vector<std::string>& program) const;

 private:
  CLI::App* command_;  // [not null]
  std::string ranks_;
  bool force_ = false;
  launcher::JobOptions options_;
};

}  // namespace lockstep::cli
