// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "cli/completion/command_tree.h"

namespace lockstep::cli {

/// The script that makes a shell complete the command line: commands, options, values of which
/// only some are allowed, files where a file is meant, and the program behind `launch`. Made from
/// the commands themselves, so that it never knows less than they do. What it defines begins with
/// _lockstep.
std::string bash_completion(const CommandEntry& root);
std::string zsh_completion(const CommandEntry& root);
std::string fish_completion(const CommandEntry& root);

/// `lockstep completion bash|zsh|fish` and `lockstep man`.
class ShellCommands {
 public:
  /// Adds the commands to `app`, which must not outlive this. What they print is about all commands
  /// that `app` has when `run` is called.
  explicit ShellCommands(CLI::App& app);

  bool was_given() const { return completion_->parsed() || man_->parsed(); }
  /// Prints what was asked for; returns the exit code. ConfigError if no shell was named, or words
  /// were given.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App& app_;
  CLI::App* completion_;  // [not null]
  CLI::App* bash_;        // [not null]
  CLI::App* zsh_;         // [not null]
  CLI::App* fish_;        // [not null]
  CLI::App* man_;         // [not null]
};

}  // namespace lockstep::cli
