// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "cli/completion/completion.h"

namespace lockstep::cli {
namespace {

/// Escapes a text for a cell of a table.
std::string cell_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '|':
      case '*':
      case '_':
      case '[':
      case ']':
      case '`':
        result += '\\';
        result += c;
        break;
      case '<':
        result += "&lt;";
        break;
      case '\n':
        result += ' ';
        break;
      default:
        result += c;
    }
  }
  return result;
}

/// Formats a text as code in a cell of a table.
std::string cell_code(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '|' ? "\\|" : std::string(1, c);
  }
  return "`" + result + "`";
}

std::string option_row(const OptionEntry& option) {
  std::string names;
  for (const std::string& name : option.names) {
    const std::string with_value =
        name == option.names.back() && !option.value.empty() ? name + " " + option.value : name;
    names += (names.empty() ? "" : ", ") + cell_code(with_value);
  }
  std::string choices;
  for (const std::string& choice : option.choices) {
    choices += (choices.empty() ? ". One of " : ", ") + cell_code(choice);
  }
  return fmt::format("| {} | {}{} |\n", names, cell_text(option.description), choices);
}

std::string options_table(const CommandEntry& command) {
  std::string rows;
  for (const OptionEntry& option : command.options) {
    rows += option_row(option);
  }
  return rows.empty() ? "" : "| option | meaning |\n|---|---|\n" + rows + "\n";
}

std::string command_section(const CommandEntry& command) {
  const auto depth = std::count(command.path.begin(), command.path.end(), ' ');
  return fmt::format(
      "{} lockstep {}\n\n{}.\n\n```text\n{}\n```\n\n{}{}",
      std::string(static_cast<size_t>(depth) + 2, '#'),
      command.path,
      cell_text(command.description),
      command.usage,
      options_table(command),
      command.footer.empty() ? "" : fmt::format("```text\n{}\n```\n\n", command.footer));
}

}  // namespace

std::string markdown_page(const CommandEntry& root) {
  std::string text =
      "# Commands and options\n\n"
      "This page lists every command with its options and examples, as `--help` does. `lockstep "
      "man "
      "--markdown`\nprints it. [command_line.md](command_line.md) has the background.\n\n" +
      options_table(root);
  for_each_command(root, [&](const CommandEntry& command) {
    text += command.path.empty() ? "" : command_section(command);
  });
  text.pop_back();  // The last empty line.
  return text;
}

}  // namespace lockstep::cli
