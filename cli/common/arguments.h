// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// The parts of a command line.
struct Arguments {
  std::vector<std::string> own;      ///< Command names and options, for CLI::App::parse.
  std::vector<std::string> words;    ///< Other arguments of the command: files and folders.
  std::vector<std::string> program;  ///< The program of `launch` and its arguments.
};

/// Splits `words` (without argv[0]) by the commands and options of `app`.
///
/// In a command that takes a program (CLI::App::prefix_command), the first word that is not an
/// option, or the word after `--`, begins the program; later words are not parsed. In another
/// command without subcommands, words that are not options are arguments, and so is every word
/// after `--`. Options may be written with `_` for `-`, as torchrun's. Throws ConfigError, with the
/// closest name, for an unknown command or option, and for an option without its value.
Arguments split_arguments(const CLI::App& app, const std::vector<std::string>& words);

/// Throws ConfigError unless `command`, like "lockstep checkpoint diff", got `least` to `most`
/// arguments, none of them empty. `expected` describes them: "two checkpoints".
void expect_words(
    const std::string& command,
    const std::vector<std::string>& words,
    size_t least,
    size_t most,
    const std::string& expected);
/// Throws ConfigError if a command without arguments, like "lockstep env", got some.
void expect_no_words(const std::string& command, const std::vector<std::string>& words);

}  // namespace lockstep::cli
