// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// An option of a command.
struct OptionEntry {
  std::vector<std::string> names;  ///< With dashes, short names first.
  std::string description;
  std::string value;                 ///< The name of its value in --help; empty for a flag.
  std::vector<std::string> choices;  ///< Allowed values; empty if unknown.
  bool takes_file = false;           ///< The value is the name of a file or folder.
};

/// A command with its subcommands.
struct CommandEntry {
  std::string path;  ///< Without the program's name: "checkpoint ls"; empty for the root.
  std::string name;  ///< The last word of the path.
  std::string description;
  std::string usage;   ///< "lockstep checkpoint ls FOLDER [--json]".
  std::string footer;  ///< The examples and the description.
  std::vector<OptionEntry> options;
  std::vector<CommandEntry> commands;
  bool takes_program = false;  ///< Its arguments are another program's command line.
  bool takes_files = false;    ///< Its arguments are files or folders.
};

/// Describes `app` and all its commands, as the source of completion scripts and the manual. An
/// option's value is a file if it is named FILE, PATH, DIR or FOLDER. Its choices are those of
/// one_of() in choices.h, or the lower-case words of a name like "N|auto". A command takes files if
/// a word in capitals follows its name in the usage.
CommandEntry command_tree(const CLI::App& app);

/// Calls `visit` for the command and all its subcommands, parents first.
template <typename Visit>
void for_each_command(const CommandEntry& command, const Visit& visit) {
  visit(command);
  for (const CommandEntry& inner : command.commands) {
    for_each_command(inner, visit);
  }
}

}  // namespace lockstep::cli
