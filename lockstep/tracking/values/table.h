// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::tracking {

/// A table. A cell is text in UTF-8, a number, a boolean or null.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<nlohmann::json>> rows;
};

/// Throws ConfigError, naming the table `name`, without columns, for a row of another length, and
/// for a cell of another type.
void check_table(const std::string& name, const Table& table);

/// Returns {"columns": [...], "data": [[...], ...]}, with a list for each row.
nlohmann::json table_json(const Table& table);

/// Returns the table in Markdown, with one line for each row.
std::string table_markdown(const Table& table);

}  // namespace lockstep::tracking
