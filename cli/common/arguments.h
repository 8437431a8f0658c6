// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// A command line, taken apart.
struct Arguments {
  std::vector<std::string> own;      ///< Command names and options, for CLI::App::parse.
  std::vector<std::string> words;    ///< What else a command is given: files and folders.
  std::vector<std::string> program;  ///< The program and all that is its own, untouched.
};

/// Cuts `words` (without argv[0]) by the commands and options that `app` knows.
///
/// In a command that takes a program (CLI::App::prefix_command), the first word that is no option,
/// or what follows `--`, begins the program, and nothing from there on is read, whatever it looks
/// like. In another command that has none below it, what is no option is a word, and what follows
/// `--` is one whatever it looks like. Options may be written with `_` for `-`, as torchrun's.
/// ConfigError, with the likeliest correction, for a command or option that `app` does not know,
/// and for an option without its value.
Arguments split_arguments(const CLI::App& app, const std::vector<std::string>& words);

/// ConfigError if a command that takes no words, like "lockstep env", got some.
void expect_no_words(const std::string& command, const std::vector<std::string>& words);

}  // namespace lockstep::cli
