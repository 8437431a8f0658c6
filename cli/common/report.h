// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"

namespace lockstep::cli {

/// What a command found, for people and for programs.
struct Report {
  std::string text;     ///< Lines, each with its newline.
  nlohmann::json json;  ///< An object; print_report adds "schema".
  int exit_code = kExitOk;
};

/// Prints the report that `make` gives, and returns its exit code. With `json`, stdout gets one
/// object with "schema": `<name>/1`, and what `make` throws is part of it: "error", "exit_code".
/// Without, it is thrown on. Error if stdout cannot be written.
int print_report(const std::string& name, bool json, const std::function<Report()>& make);

/// One or more lines of text in columns, two spaces apart and two from the left. The first row is
/// the head. Columns of which `right` says so are aligned to the right. No line ends with a space.
/// `most`: width from which on what is long loses its middle, but not to the right and not in the
/// last column, which may go on in the next line; 0 for none.
std::string render_table(
    const std::vector<std::vector<std::string>>& rows,
    const std::vector<bool>& right,
    size_t most = 0);

/// The width of the terminal that stdout is; 0 if it is none.
size_t terminal_columns();

/// The text in no more than `most` characters, with an ellipsis for its middle.
std::string shortened(const std::string& text, size_t most);

/// Throws unless all that was written to stdout has got there.
void flush_stdout();

/// A name of unknown origin, made fit for a terminal: what could move the cursor is escaped, and
/// what is not UTF-8 replaced.
std::string printable(const std::string& text);

/// "1,234,567".
std::string with_commas(int64_t number);

/// What an error said of something in `folder`, without saying the folder again.
std::string without_folder(const std::string& why, const std::filesystem::path& folder);

}  // namespace lockstep::cli
