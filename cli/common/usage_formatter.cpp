// SPDX-License-Identifier: Apache-2.0
#include "cli/common/usage_formatter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/common/report.h"
#include "lockstep/base/text/split.h"

namespace lockstep::cli {
namespace {

constexpr size_t kWidest = 100;
constexpr size_t kNarrowest = 60;

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// Returns the columns of a description, beside the names of options.
size_t description_columns(size_t names) {
  const size_t terminal = terminal_columns();
  return std::clamp(terminal == 0 ? kWidest : terminal, kNarrowest, kWidest) - names;
}

/// Returns "no,fp16,bf16" of "P:{no,fp16,bf16}", or "".
std::string listed_choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find(":{");
  return open == std::string::npos || !type.ends_with('}')
             ? ""
             : type.substr(open + 2, type.size() - open - 3);
}

}  // namespace

std::string UsageFormatter::make_help(
    const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string text = Formatter::make_help(app, std::move(name), mode);
  replace_all(text, "\n\n\n", "\n\n");
  return text;
}

std::string UsageFormatter::make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const {
  std::string text = Formatter::make_subcommands(app, mode);
  replace_all(text, "\nSubcommands:\n", "\nCommands:\n");
  return text;
}

std::string UsageFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  std::string names = Formatter::make_option_name(option, is_positional);
  replace_all(names, ",-", ", -");
  return names;
}

std::string UsageFormatter::make_option_opts(const CLI::Option* option) const {
  const std::string choices = listed_choices(*option);
  std::string value = Formatter::make_option_opts(option);
  replace_all(value, ":{" + choices + "}", "");
  return value;
}

std::string UsageFormatter::make_option_desc(const CLI::Option* option) const {
  const std::string choices = listed_choices(*option);
  std::string text = option->get_description();
  if (!choices.empty()) {
    text += fmt::format(" [one of {}]", fmt::join(split(choices, ','), ", "));
  }
  return wrapped(text, description_columns(get_column_width()));
}

}  // namespace lockstep::cli
