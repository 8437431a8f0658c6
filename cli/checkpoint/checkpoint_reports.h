// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/common/report.h"
#include "lockstep/storage/catalog/retention.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::cli {

/// What the commands below `lockstep checkpoint` find. Each throws ConfigError for a path that is
/// not there or of the wrong kind, with the right one where that can be told, and CheckpointError
/// for what cannot be read.

/// Opens a checkpoint that a command was given. ConfigError, naming the newest, if it is a folder
/// of checkpoints.
storage::StoredCheckpoint open_checkpoint(
    const std::filesystem::path& path, storage::Verify verify = storage::Verify::kSizes);

/// Every checkpoint in a folder, and what else lies there.
Report list_report(const std::filesystem::path& folder);

/// Files, tensors and meta of one. Exit code 1 if a set of tensors in it cannot be read.
Report show_report(const std::filesystem::path& path);

/// Reads all of each, with a progress bar on a terminal. Exit code 1 if anything is damaged.
Report verify_report(const std::vector<std::filesystem::path>& paths);

/// What `other` has that `one` has not. Exit code 1 if they differ.
Report diff_report(const std::filesystem::path& one, const std::filesystem::path& other);

/// Removes all but the newest, and before that what killed processes left, see remove_stale.
Report prune_report(const std::filesystem::path& folder, const storage::PruneOptions& options);

}  // namespace lockstep::cli
