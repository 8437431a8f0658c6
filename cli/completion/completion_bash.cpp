// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion/completion.h"
#include "lockstep/base/text/shell.h"

namespace lockstep::cli {
namespace {

/// The code after the tables. bash splits `--option=value` into three words, unless the user
/// removed = from COMP_WORDBREAKS.
constexpr const char* kFunction = R"bash(
_lockstep_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$1")
}

_lockstep() {
  local cur=${COMP_WORDS[COMP_CWORD]} command="" option="" words="" prefix="" i word kind
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ -n $option ]]; then
      [[ $word == = ]] || option=""
    elif [[ $word == -- ]]; then
      words=1
      ((++i))
      break
    elif [[ $word == -* ]]; then
      [[ -n $(_lockstep_value "$command" "${word//_/-}") ]] && option=${word//_/-}
    elif [[ " $(_lockstep_commands "$command") " == *" $word "* ]]; then
      command="${command:+$command }$word"
    elif [[ $(_lockstep_words "$command") == program ]]; then
      words=1
      break
    fi
  done
  kind=$(_lockstep_words "$command")
  if [[ -n $words && $kind == program && i -lt COMP_CWORD ]]; then
    _lockstep_files "$cur"
    return
  fi
  if [[ -z $words && $cur == --*=* ]]; then
    option=${cur%%=*}
    prefix=$option=
    cur=${cur#*=}
  elif [[ -n $option && $cur == = ]]; then
    cur=""
  fi
  if [[ -n $option ]]; then
    kind=$(_lockstep_value "$command" "$option")
    case $kind in
      :file) _lockstep_files "$cur" ;;
      :any | "") ;;
      *) mapfile -t COMPREPLY < <(compgen -W "$kind" -- "$cur") ;;
    esac
    COMPREPLY=("${COMPREPLY[@]/#/$prefix}")
  elif [[ -z $words && $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_lockstep_options "$command")" -- "$cur")
  elif [[ $kind == program ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -c -f -- "$cur")
  elif [[ $kind == files ]]; then
    _lockstep_files "$cur"
  else
    mapfile -t COMPREPLY < <(compgen -W "$(_lockstep_commands "$command")" -- "$cur")
  fi
}

complete -F _lockstep lockstep
)bash";

std::string kind_of(const OptionEntry& option) {
  if (!option.choices.empty()) {
    return fmt::format("{}", fmt::join(option.choices, " "));
  }
  return option.takes_file ? ":file" : ":any";
}

/// Formats a function that prints the entry of `rows` for its first argument.
std::string table(const std::string& name, const std::string& what, const std::string& rows) {
  return fmt::format("\n{}() {{\n  case {} in\n{}  esac\n}}\n", name, what, rows);
}

std::string row(const std::string& key, const std::string& value) {
  return fmt::format(
      "    {}) echo {} ;;\n", key.empty() ? "\"\"" : shell_quoted({key}), shell_quoted({value}));
}

}  // namespace

std::string bash_completion(const CommandEntry& root) {
  std::string commands;
  std::string options;
  std::string words;
  std::string values;
  for_each_command(root, [&](const CommandEntry& command) {
    std::vector<std::string> names;
    for (const CommandEntry& inner : command.commands) {
      names.push_back(inner.name);
    }
    if (!names.empty()) {
      commands += row(command.path, fmt::format("{}", fmt::join(names, " ")));
    }
    names.clear();
    for (const OptionEntry& option : command.options) {
      names.insert(names.end(), option.names.begin(), option.names.end());
      for (const std::string& name : option.names) {
        if (!option.value.empty()) {
          values += row(command.path + " " + name, kind_of(option));
        }
      }
    }
    options += row(command.path, fmt::format("{}", fmt::join(names, " ")));
    if (command.takes_program || command.takes_files) {
      words += row(command.path, command.takes_program ? "program" : "files");
    }
  });
  return "# Completion of lockstep for bash, printed by: lockstep completion bash\n" +
         table("_lockstep_commands", "$1", commands) + table("_lockstep_options", "$1", options) +
         table("_lockstep_words", "$1", words) + table("_lockstep_value", "\"$1 $2\"", values) +
         kFunction;
}

}  // namespace lockstep::cli
