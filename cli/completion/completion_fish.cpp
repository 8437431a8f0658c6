// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion/completion.h"

namespace lockstep::cli {
namespace {

constexpr const char* kFunctions = R"fish(
# Prints the command before the cursor, and "-" after it if no options of lockstep can follow.
function __lockstep_path
    set -l tokens (commandline -opc)
    set -e tokens[1]
    set -l path ''
    set -l pending no
    for token in $tokens
        if test $pending = yes
            set pending no
        else if test "$token" = --
            echo "$path -"
            return
        else if string match -q -- '-*' $token
            if contains -- "$path "(string replace -a _ - -- $token) $__lockstep_valued
                set pending yes
            end
        else if contains -- (string trim -- "$path $token") $__lockstep_commands
            set path (string trim -- "$path $token")
        else if contains -- "$path" $__lockstep_launchers
            echo "$path -"
            return
        end
    end
    echo $path
end

function __lockstep_at
    set -l path (__lockstep_path)
    test "$path" = "$argv[1]"
end

function __lockstep_in
    set -l path (__lockstep_path)
    test "$path" = "$argv[1]" -o "$path" = "$argv[1] -"
end

complete -c lockstep -f
)fish";

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') {
      result += '\\';
    }
    result += c == '\n' ? ' ' : c;
  }
  return result + "'";
}

/// Formats a `complete` line that applies to one command only.
std::string line(const char* test, const CommandEntry& command, const std::string& rest) {
  return fmt::format(
      "complete -c lockstep -n {} {}\n",
      quoted(fmt::format("{} {}", test, quoted(command.path))),
      rest);
}

std::string option_line(const CommandEntry& command, const OptionEntry& option) {
  std::string rest;
  for (const std::string& name : option.names) {
    rest += name.starts_with("--") ? "-l " + name.substr(2) + " " : "-s " + name.substr(1) + " ";
  }
  if (!option.choices.empty()) {
    rest += fmt::format("-x -a {} ", quoted(fmt::format("{}", fmt::join(option.choices, " "))));
  } else if (!option.value.empty()) {
    rest += option.takes_file ? "-r -F " : "-x ";
  }
  return line("__lockstep_at", command, rest + "-d " + quoted(option.description));
}

}  // namespace

std::string fish_completion(const CommandEntry& root) {
  std::vector<std::string> commands;
  std::vector<std::string> launchers;
  std::vector<std::string> valued;
  std::string lines;
  for_each_command(root, [&](const CommandEntry& command) {
    for (const CommandEntry& inner : command.commands) {
      commands.push_back(quoted(inner.path));
      lines += line(
          "__lockstep_at",
          command,
          fmt::format("-a {} -d {}", inner.name, quoted(inner.description)));
    }
    for (const OptionEntry& option : command.options) {
      lines += option_line(command, option);
      for (const std::string& name : option.names) {
        if (!option.value.empty()) {
          valued.push_back(quoted(command.path + " " + name));
        }
      }
    }
    if (command.takes_program) {
      launchers.push_back(quoted(command.path));
    }
    if (command.takes_program || command.takes_files) {
      lines += line("__lockstep_in", command, "-F");
    }
  });
  return fmt::format(
      "# Completion of lockstep for fish, printed by: lockstep completion fish\n"
      "set -g __lockstep_commands {}\n"
      "set -g __lockstep_launchers {}\n"
      "set -g __lockstep_valued {}\n{}\n{}",
      fmt::join(commands, " "),
      fmt::join(launchers, " "),
      fmt::join(valued, " "),
      kFunctions,
      lines);
}

}  // namespace lockstep::cli
