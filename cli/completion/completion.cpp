// SPDX-License-Identifier: Apache-2.0
#include "cli/completion/completion.h"

#include <cstdio>

#include <fmt/format.h>

#include "cli/common/arguments.h"
#include "cli/common/report.h"
#include "cli/common/usage_formatter.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

constexpr const char* kCompletionFooter = R"(Examples:
  source <(lockstep completion bash)         in ~/.bashrc
  lockstep completion zsh > ~/.zfunc/_lockstep
                                             in a folder of $fpath, before compinit
  lockstep completion fish > ~/.config/fish/completions/lockstep.fish

An installed Lockstep has the scripts in the standard folders of the shells.

Exit code: 0; 2 for a usage error.)";

constexpr const char* kOneShellFooter = R"(Examples:
  {}

Exit code: 0; 2 for a usage error.)";

constexpr const char* kManFooter = R"(Examples:
  lockstep man | man -l -
  lockstep man > ~/.local/share/man/man1/lockstep.1

Prints the manual page lockstep(1), with every command and option. An installed Lockstep has
it in the standard folder of man.

Exit code: 0; 2 for a usage error.)";

CLI::App* add_shell(CLI::App& completion, const std::string& shell, const std::string& example) {
  CLI::App* command = completion.add_subcommand(shell, "Print the completion script for " + shell);
  set_help(
      *command,
      "lockstep completion " + shell,
      fmt::format(fmt::runtime(kOneShellFooter), example));
  return command;
}

}  // namespace

ShellCommands::ShellCommands(CLI::App& app)
    : app_(app),
      completion_(app.add_subcommand("completion", "Print a completion script for a shell")) {
  set_help(*completion_, "lockstep completion bash|zsh|fish", kCompletionFooter);
  bash_ = add_shell(*completion_, "bash", "source <(lockstep completion bash)");
  zsh_ = add_shell(*completion_, "zsh", "lockstep completion zsh > ~/.zfunc/_lockstep");
  fish_ = add_shell(
      *completion_, "fish", "lockstep completion fish > ~/.config/fish/completions/lockstep.fish");
  man_ = app.add_subcommand("man", "Print the manual page");
  man_->add_flag("--markdown", markdown_, "Print Markdown, as docs/commands.md");
  set_help(*man_, "lockstep man [--markdown]", kManFooter);
}

int ShellCommands::run(const std::vector<std::string>& words) const {
  const std::string where = man_->parsed() ? "lockstep man" : "lockstep completion";
  expect_no_words(where, words);
  const CommandEntry root = command_tree(app_);
  std::string text;
  if (man_->parsed()) {
    text = markdown_ ? markdown_page(root) : man_page(root);
  } else if (bash_->parsed()) {
    text = bash_completion(root);
  } else if (zsh_->parsed()) {
    text = zsh_completion(root);
  } else if (fish_->parsed()) {
    text = fish_completion(root);
  } else {
    throw ConfigError(where, "the shell is missing; expected bash, zsh or fish");
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_stdout();
  return kExitOk;
}

}  // namespace lockstep::cli
