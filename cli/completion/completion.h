// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "cli/completion/command_tree.h"

namespace lockstep::cli {

/// Returns the completion script of a shell, generated from the commands: for commands, options,
/// values with choices, files, and the program of `launch`. Names that it defines begin with
/// _lockstep.
std::string bash_completion(const CommandEntry& root);
std::string zsh_completion(const CommandEntry& root);
std::string fish_completion(const CommandEntry& root);

/// Returns the manual page lockstep(1) in roff's man macros: every command with usage, options and
/// examples, as in --help, then exit codes and files.
std::string man_page(const CommandEntry& root);

/// Returns the same in Markdown: the page docs/commands.md.
std::string markdown_page(const CommandEntry& root);

/// The commands `lockstep completion bash|zsh|fish` and `lockstep man`.
class ShellCommands {
 public:
  /// Adds the commands to `app`, which must not outlive this. Their output has all commands that
  /// `app` has when `run` is called.
  explicit ShellCommands(CLI::App& app);

  bool was_given() const { return completion_->parsed() || man_->parsed(); }
  /// Prints the script or the page, and returns the exit code. Throws ConfigError without a shell,
  /// or with arguments.
  int run(const std::vector<std::string>& words) const;

 private:
  CLI::App& app_;
  CLI::App* completion_;  // [not null]
  CLI::App* bash_;        // [not null]
  CLI::App* zsh_;         // [not null]
  CLI::App* fish_;        // [not null]
  CLI::App* man_;         // [not null]
  bool markdown_ = false;
};

}  // namespace lockstep::cli
