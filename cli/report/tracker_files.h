// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "cli/report/run_files.h"

namespace lockstep::cli {

/// The file of the tracker "jsonl".
inline constexpr const char* kMetrics = "metrics.jsonl";

/// Returns whether a tracker of Lockstep wrote the file: metrics.jsonl, an event file of
/// TensorBoard, or a curve of the tracker "csv".
bool is_tracker_file(const std::filesystem::path& path);

/// Reads what trackers stored in run.folder into `curves`, `config` and `status`: metrics.jsonl; if
/// it is absent, the event files of TensorBoard; if there are none, the files of the tracker "csv".
/// Adds a note for each damaged file, and one about trackers to add if there is no file. Throws
/// ConfigError with the path of a file that cannot be read.
void read_tracker_files(RunFiles& run);

}  // namespace lockstep::cli
