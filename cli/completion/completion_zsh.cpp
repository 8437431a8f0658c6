// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion/completion.h"

namespace lockstep::cli {
namespace {

/// Escapes a text for single quotes, with a backslash before each of `special`.
std::string zsh_escaped(const std::string& text, std::string_view special) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
      continue;
    }
    if (c == '\\' || special.find(c) != std::string_view::npos) {
      result += '\\';
    }
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string function_name(const CommandEntry& command) {
  std::string name = "_lockstep" + (command.path.empty() ? "" : "_" + command.path);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

/// Formats the arguments of _arguments for an option, one for each of its names.
std::string option_spec(const OptionEntry& option) {
  std::string value;
  if (!option.value.empty()) {
    value = ":" + zsh_escaped(option.value, ":") + ":";
    value += !option.choices.empty() ? fmt::format("({})", fmt::join(option.choices, " "))
             : option.takes_file     ? "_files"
                                     : " ";
  }
  std::string spec;
  for (const std::string& name : option.names) {
    // An option excludes its other names.
    const std::string others =
        option.names.size() == 1 ? "" : fmt::format("({})", fmt::join(option.names, " "));
    const char* joined = option.value.empty() ? "" : name.starts_with("--") ? "=" : "+";
    spec += fmt::format(
        "    '{}{}{}[{}]{}' \\\n",
        others,
        name,
        joined,
        zsh_escaped(option.description, "[]:"),
        value);
  }
  return spec;
}

std::string leaf(const CommandEntry& command, const std::string& specs) {
  std::string words;
  if (command.takes_program) {
    words = "    '(-)1:program:_command_names -e' \\\n    '*::argument:_normal' \\\n";
  } else if (command.takes_files) {
    words = "    '*:file:_files' \\\n";
  }
  return fmt::format("  _arguments -s -S \\\n{}{}    && return 0\n", specs, words);
}

std::string branch(const CommandEntry& command, const std::string& specs) {
  std::string names;
  std::string calls;
  for (const CommandEntry& inner : command.commands) {
    names += fmt::format("    '{}:{}'\n", inner.name, zsh_escaped(inner.description, ":"));
    calls += fmt::format("        {}) {} && ret=0 ;;\n", inner.name, function_name(inner));
  }
  return fmt::format(
      "  local state ret=1\n"
      "  local -a line commands=(\n{}  )\n"
      "  _arguments -C \\\n{}"
      "    '1: :->command' \\\n"
      "    '*:: :->rest' && ret=0\n"
      "  case $state in\n"
      "    command) _describe -t commands command commands && ret=0 ;;\n"
      "    rest)\n"
      "      case $line[1] in\n{}"
      "      esac ;;\n"
      "  esac\n"
      "  return ret\n",
      names,
      specs,
      calls);
}

}  // namespace

std::string zsh_completion(const CommandEntry& root) {
  std::string text =
      "#compdef lockstep\n"
      "# Completion of lockstep for zsh, printed by: lockstep completion zsh\n";
  for_each_command(root, [&](const CommandEntry& command) {
    std::string specs;
    for (const OptionEntry& option : command.options) {
      specs += option_spec(option);
    }
    text += fmt::format(
        "\n{}() {{\n{}}}\n",
        function_name(command),
        command.commands.empty() ? leaf(command, specs) : branch(command, specs));
  });
  // A file of $fpath is the body of the function; a sourced file registers it.
  return text +
         "\nif [[ $funcstack[1] == _lockstep ]]; then\n"
         "  _lockstep \"$@\"\n"
         "else\n"
         "  compdef _lockstep lockstep\n"
         "fi\n";
}

}  // namespace lockstep::cli
