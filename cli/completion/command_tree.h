// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// An option as its command was told of it.
struct OptionEntry {
  std::vector<std::string> names;  ///< With their dashes, one letter first.
  std::string description;
  std::string value;                 ///< What --help calls its value; empty for one without.
  std::vector<std::string> choices;  ///< Values that it takes; empty where that cannot be told.
  bool takes_file = false;           ///< The value is the name of a file or folder.
};

/// A command with all below it.
struct CommandEntry {
  std::string path;  ///< Its words without the program's own: "checkpoint ls"; empty for the root.
  std::string name;  ///< The last of them.
  std::string description;
  std::string usage;   ///< "lockstep checkpoint ls FOLDER [--json]".
  std::string footer;  ///< Examples and prose.
  std::vector<OptionEntry> options;
  std::vector<CommandEntry> commands;
  bool takes_program = false;  ///< Its first word begins somebody else's command line.
  bool takes_files = false;    ///< Its words are files or folders.
};

/// What completion and the manual are made of: `app` and all its commands, as --help tells of them.
/// An option's value is a file if it is called FILE, PATH, DIR or FOLDER; its choices are those of
/// one_of() of choices.h, or the words in small letters of a value called like "N|auto". A command
/// takes files if its usage goes on behind its name with a word in capitals.
CommandEntry command_tree(const CLI::App& app);

/// Calls `visit` for the command and all below it, parents first.
template <typename Visit>
void for_each_command(const CommandEntry& command, const Visit& visit) {
  visit(command);
  for (const CommandEntry& inner : command.commands) {
    for_each_command(inner, visit);
  }
}

}  // namespace lockstep::cli
