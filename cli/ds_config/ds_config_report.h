// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include "cli/common/report.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep::cli {

/// For a file with errors: exit code 2, and for JSON "error", "errors" and "exit_code". The text is
/// empty: errors are for stderr, where each gets a line of its own if `log_errors`. Nothing for a
/// file without.
std::optional<Report> refusal_of(const ds_config::Reading& reading, bool log_errors);

/// Every value of a ds_config.json and who said it, as `lockstep ds-config check` prints it.
/// `log_errors`: see refusal_of. ConfigError if it cannot be read.
///
/// As JSON: {"file", "world_size", "values": {path: {"value", "origin"}}, "notes": [{"where",
/// "line", "column", "what"}]}; of a file with errors {"error", "errors": [as notes], "exit_code"}.
Report ds_config_report(const std::filesystem::path& file, int64_t world_size, bool log_errors);

/// What becomes of each key: the tables of docs/ds_config.md, as they stand there.
Report ds_config_keys_report();

}  // namespace lockstep::cli
