// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "cli/report/run_files.h"

namespace lockstep::cli {

/// Returns whether a tracker of Lockstep wrote the file: metrics.jsonl, an event file of
/// TensorBoard, or a curve of the tracker "csv".
bool is_tracker_file(const std::filesystem::path& path);

/// Reads what trackers stored in run.folder into `curves`, `config` and `status`: metrics.jsonl; if
/// it is absent, the event files of TensorBoard; if there are none, the files of the tracker "csv".
/// Notes damaged parts, and how to get what is absent. Throws ConfigError, naming it, for a file
/// that cannot be read.
void read_tracker_files(RunFiles& run);

}  // namespace lockstep::cli
