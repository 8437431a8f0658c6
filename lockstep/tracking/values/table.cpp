// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/values/table.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"
#include "lockstep/tracking/values/non_finite.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

/// Returns a cell's text on one line, with its separators escaped.
std::string markdown_cell(const std::string& text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|' || c == '\\') {
      cell += '\\';
    }
    cell += c == '\n' || c == '\r' ? ' ' : c;
  }
  return cell;
}

std::string cell_text(const json& cell) {
  if (cell.is_string()) {
    return cell.get<std::string>();
  }
  if (cell.is_number_float() && !std::isfinite(cell.get<double>())) {  // dump() would write null.
    return name_of_non_finite(cell.get<double>());
  }
  return cell.dump();
}

}  // namespace

void check_table(const std::string& name, const Table& table) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError("tracking", fmt::format("table '{}' {}", name, why));
  };
  if (table.columns.empty()) {
    refuse("has no columns; expected a name for each");
  }
  for (const std::string& column : table.columns) {
    if (!is_utf8(column)) {
      refuse("has a column whose name is not valid UTF-8; expected UTF-8");
    }
  }
  for (size_t row = 0; row < table.rows.size(); ++row) {
    const std::vector<json>& cells = table.rows[row];
    if (cells.size() != table.columns.size()) {
      refuse(fmt::format(
          "has a row {} of {} cells; expected {}, one for each column",
          row,
          cells.size(),
          table.columns.size()));
    }
    for (size_t i = 0; i < cells.size(); ++i) {
      const json& cell = cells[i];
      if (cell.is_structured() || cell.is_binary() ||
          (cell.is_string() && !is_utf8(cell.get_ref<const std::string&>()))) {
        refuse(fmt::format(
            "has a JSON {} in row {}, column '{}'; expected text in UTF-8, a number, a boolean or "
            "null",
            cell.type_name(),
            row,
            table.columns[i]));
      }
    }
  }
}

nlohmann::json table_json(const Table& table) {
  return {{"columns", table.columns}, {"data", table.rows}};
}

std::string table_markdown(const Table& table) {
  std::string names = "|";
  std::string line = "|";
  for (const std::string& column : table.columns) {
    names += fmt::format(" {} |", markdown_cell(column));
    line += "---|";
  }
  std::string text = names + "\n" + line;
  for (const std::vector<json>& row : table.rows) {
    text += "\n|";
    for (const json& cell : row) {
      text += fmt::format(" {} |", markdown_cell(cell_text(cell)));
    }
  }
  return text;
}

}  // namespace lockstep::tracking
