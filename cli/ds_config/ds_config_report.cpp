// SPDX-License-Identifier: Apache-2.0
#include "cli/ds_config/ds_config_report.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/base/text/split.h"
#include "lockstep/ds_config/keys/described_values.h"
#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/parameters/parameter_table.h"
#include "lockstep/ds_config/value_text.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::json;
using ds_config::Diagnostic;

Json json_of_remarks(const std::vector<Diagnostic>& diagnostics) {
  Json list = Json::array();
  for (const Diagnostic& diagnostic : diagnostics) {
    list.push_back(
        {{"where", diagnostic.where},
         {"line", diagnostic.place.line},
         {"column", diagnostic.place.column},
         {"what", diagnostic.what}});
  }
  return list;
}

std::string line_of(const Diagnostic& diagnostic) {
  return printable(fmt::format("[{}] {}", diagnostic.where, diagnostic.what));
}

/// Removes Markdown's code quotes, and replaces links by their text.
std::string without_markdown(const std::string& text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t close = text[at] == '[' ? text.find(']', at) : std::string::npos;
    if (close != std::string::npos && text.compare(close, 3, "](#") == 0) {
      plain += text.substr(at + 1, close - at - 1);
      at = text.find(')', close);
    } else if (text[at] != '`') {
      plain += text[at];
    }
  }
  return plain;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  return text;
}

/// Formats rows for people. On a narrow terminal the last column is below the others.
std::string plain_table(const ds_config::TableRows& markdown) {
  constexpr size_t kWide = 140;
  const std::string indent = "      ";
  std::vector<std::vector<std::string>> rows;
  for (const std::vector<std::string>& row : markdown) {
    std::vector<std::string>& plain = rows.emplace_back();
    for (const std::string& cell : row) {
      plain.push_back(without_markdown(&row == &markdown.front() ? upper(cell) : cell));
    }
  }
  const size_t columns = terminal_columns();
  if (columns == 0 || columns >= kWide) {
    return render_table(rows, std::vector<bool>(rows.front().size(), false));
  }
  std::vector<std::string> last;
  for (std::vector<std::string>& row : rows) {
    last.push_back(std::move(row.back()));
    row.pop_back();
  }
  const std::vector<std::string> lines =
      split(render_table(rows, std::vector<bool>(rows.front().size(), false)), '\n');
  std::string text;
  for (size_t i = 0; i < last.size(); ++i) {
    text += lines[i] + "\n";
    if (!last[i].empty()) {
      text += indent + wrapped(last[i], columns - indent.size(), indent) + "\n";
    }
  }
  return text;
}

}  // namespace

std::optional<Report> refusal_of(const ds_config::Reading& reading, bool log_errors) {
  if (reading.errors.empty()) {
    return std::nullopt;
  }
  std::string all;
  for (const Diagnostic& error : reading.errors) {
    const std::string line = line_of(error);
    all += (all.empty() ? "" : "\n") + line;
    if (log_errors) {
      log_error(line);
    }
  }
  Report report;
  report.exit_code = kExitUsage;
  report.json = {
      {"error", all},
      {"errors", json_of_remarks(reading.errors)},
      {"exit_code", static_cast<int>(kExitUsage)}};
  return report;
}

Report ds_config_report(const std::filesystem::path& file, int64_t world_size, bool log_errors) {
  const ds_config::Reading reading =
      ds_config::read_ds_config(ds_config::read_ds_document(file), world_size);
  if (std::optional<Report> refusal = refusal_of(reading, log_errors)) {
    return *std::move(refusal);
  }
  std::vector<std::vector<std::string>> rows = {{"KEY", "VALUE", "SOURCE"}};
  Json values = Json::object();
  for (const ds_config::DescribedValue& each : ds_config::described_values(reading.config)) {
    rows.push_back({each.path, printable(ds_config::text_of(each.value)), printable(each.origin)});
    values[each.path] = {{"value", each.value}, {"origin", each.origin}};
  }
  Report report;
  report.text = fmt::format(
      "{} on {}\n\n{}",
      printable(file.native()),
      counted(static_cast<size_t>(world_size), "rank"),
      render_table(rows, {false, false, false}, terminal_columns()));
  for (const Diagnostic& note : reading.notes) {
    report.text += (&note == reading.notes.data() ? "\nnote: " : "note: ") + line_of(note) + "\n";
  }
  report.json = {
      {"file", file.native()},
      {"world_size", world_size},
      {"values", std::move(values)},
      {"notes", json_of_remarks(reading.notes)}};
  return report;
}

Report ds_config_keys_report(bool markdown) {
  Report report;
  for (const ds_config::TableRows& rows :
       {ds_config::key_rows(),
        ds_config::type_rows(ds_config::optimizer_types()),
        ds_config::type_rows(ds_config::schedule_types())}) {
    report.text += (report.text.empty() ? "" : "\n") +
                   (markdown ? ds_config::render_markdown(rows) : plain_table(rows));
  }
  return report;
}

}  // namespace lockstep::cli
