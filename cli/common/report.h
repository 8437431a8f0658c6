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

/// The result of a command, for people and for programs.
struct Report {
  std::string text;     ///< Lines, each with its newline.
  nlohmann::json json;  ///< An object; print_report adds "schema".
  int exit_code = kExitOk;
};

/// Prints the report that `make` returns, and returns its exit code. With `json`, prints one object
/// with "schema": `<name>/1`; an exception of `make` becomes its "error" and "exit_code". Without
/// `json`, the exception is rethrown. Throws Error if stdout cannot be written.
int print_report(const std::string& name, bool json, const std::function<Report()>& make);

/// Formats a table, with two spaces before each column. The first row has the headings. Columns
/// with `right` are aligned to the right. No line ends with a space. A line wider than `most` (0:
/// no limit) gets an ellipsis in the middle of long cells. Cells of the last column and of columns
/// aligned to the right are not shortened.
std::string render_table(
    const std::vector<std::vector<std::string>>& rows,
    const std::vector<bool>& right,
    size_t most = 0);

/// Returns the width of the terminal at stdout; 0 if stdout is not a terminal.
size_t terminal_columns();

/// Shortens a text to `most` characters, with an ellipsis for its middle.
std::string shortened(const std::string& text, size_t most);

/// Breaks a text between words into lines of at most `columns` characters, joined by a newline and
/// `indent`. A longer word has a line of its own.
std::string wrapped(const std::string& text, size_t columns, const std::string& indent = "");

/// Flushes stdout. Throws Error if any write to it has failed.
void flush_stdout();

/// Returns a text of unknown origin in a form that is safe for a terminal: control characters are
/// escaped, invalid UTF-8 is replaced.
std::string printable(const std::string& text);

/// Formats a number as "1,234,567".
std::string with_commas(int64_t number);

/// Returns an error message about a file in `folder` without the folder's path.
std::string without_folder(const std::string& why, const std::filesystem::path& folder);

}  // namespace lockstep::cli
