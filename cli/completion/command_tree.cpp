// SPDX-License-Identifier: Apache-2.0
#include "cli/completion/command_tree.h"

#include <algorithm>
#include <cctype>
#include <memory>

#include "lockstep/base/text/split.h"

namespace lockstep::cli {
namespace {

bool is_capital(char c) {
  return std::isupper(static_cast<unsigned char>(c)) != 0;
}

std::vector<std::string> choices_of(const std::string& type, const std::string& value) {
  const size_t open = type.find(":{");
  const size_t close = type.find('}', open);
  if (open != std::string::npos && close != std::string::npos) {
    return split(type.substr(open + 2, close - open - 2), ',');
  }
  std::vector<std::string> choices;
  if (value.find('|') != std::string::npos) {
    choices = split(value, '|');
    std::erase_if(
        choices, [](const std::string& word) { return word.empty() || is_capital(word.front()); });
  }
  return choices;
}

bool is_file(const std::string& value) {
  for (const char* word : {"FILE", "PATH", "DIR", "FOLDER"}) {
    if (value.find(word) != std::string::npos) {
      return true;
    }
  }
  return false;
}

OptionEntry describe(const CLI::Option& option) {
  OptionEntry entry;
  entry.description = option.get_description();
  for (const std::string& name : option.get_snames()) {
    entry.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    entry.names.push_back("--" + name);
  }
  if (option.get_expected_min() > 0) {
    const std::string type = option.get_type_name();
    entry.value = type.substr(0, type.find(':'));
    entry.choices = choices_of(type, entry.value);
    entry.takes_file = is_file(entry.value);
  }
  return entry;
}

std::string usage_of(const CLI::App& app) {
  const auto formatter = std::dynamic_pointer_cast<CLI::Formatter>(app.get_formatter());
  std::string usage = formatter ? formatter->make_usage(&app, app.get_name()) : "";
  constexpr const char* kTitle = "Usage: ";
  if (usage.starts_with(kTitle)) {
    usage.erase(0, std::string(kTitle).size());
  }
  while (!usage.empty() && usage.back() == '\n') {
    usage.pop_back();
  }
  return usage;
}

/// Returns whether the word after the command's name in `usage` is in capitals, with or without [.
bool names_words(const std::string& usage, const std::string& full_name) {
  if (!usage.starts_with(full_name + " ")) {
    return false;
  }
  size_t at = full_name.size() + 1;
  at += usage[at] == '[' ? 1 : 0;
  return at < usage.size() && is_capital(usage[at]) &&
         !std::string_view(usage).substr(at).starts_with("OPTIONS");
}

CommandEntry describe(const CLI::App& app, const std::string& parent, const std::string& program) {
  const bool root = app.get_parent() == nullptr;
  CommandEntry entry;
  entry.path = root ? "" : parent + (parent.empty() ? "" : " ") + app.get_name();
  entry.name = app.get_name();
  entry.description = app.get_description();
  entry.usage = usage_of(app);
  entry.footer = app.get_footer();
  entry.takes_program = app.get_prefix_command();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty() && !option->get_positional()) {
      entry.options.push_back(describe(*option));
    }
  }
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) {
      entry.commands.push_back(describe(*command, entry.path, program));
    }
  }
  entry.takes_files = entry.commands.empty() && !entry.takes_program &&
                      names_words(entry.usage, program + " " + entry.path);
  return entry;
}

}  // namespace

CommandEntry command_tree(const CLI::App& app) {
  return describe(app, "", app.get_name());
}

}  // namespace lockstep::cli
