// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include "cli/common/report.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep::cli {

/// Returns the report of a file with errors; nothing for a file without errors. The report has exit
/// code 2, no text, and the JSON keys "error", "errors" and "exit_code". With `log_errors`, logs
/// each error as a line on stderr.
std::optional<Report> refusal_of(const ds_config::Reading& reading, bool log_errors);

/// Reports every value of a ds_config.json and its origin, for `lockstep ds-config check`.
/// `log_errors`: see refusal_of. Throws ConfigError if the file cannot be read.
///
/// JSON: {"file", "world_size", "values": {path: {"value", "origin"}}, "notes": [{"where",
/// "line", "column", "what"}]}; for a file with errors {"error", "errors": [like notes],
/// "exit_code"}.
Report ds_config_report(const std::filesystem::path& file, int64_t world_size, bool log_errors);

/// Returns the tables of docs/ds_config.md, with the status of each key: for people, or as
/// Markdown.
Report ds_config_keys_report(bool markdown);

}  // namespace lockstep::cli
