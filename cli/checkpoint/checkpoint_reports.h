// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/common/report.h"
#include "lockstep/storage/catalog/retention.h"
#include "lockstep/storage/stored_checkpoint.h"
#include "lockstep/storage/tensor_set.h"

namespace lockstep::cli {

/// The reports of the commands below `lockstep checkpoint`. Each throws ConfigError for a path that
/// does not exist or is of the wrong kind, and CheckpointError for data that cannot be read.

/// Opens the checkpoint at `path`. Throws ConfigError, naming the newest checkpoint, if `path` is a
/// folder of checkpoints.
storage::StoredCheckpoint open_checkpoint(
    const std::filesystem::path& path, storage::Verify verify = storage::Verify::kSizes);

/// Opens the tensors of a model of `stored`: 0 is `model`, 1 is `model_1`. `stored` must outlive
/// the result. Throws ConfigError that lists the sets if the checkpoint has no such model.
storage::TensorSet open_model(const storage::StoredCheckpoint& stored, int model);

/// Lists the checkpoints and the other entries of a folder.
Report list_report(const std::filesystem::path& folder);

/// Shows the files, tensors and meta data of a checkpoint. Exit code 1 if a set of tensors cannot
/// be read.
Report show_report(const std::filesystem::path& path);

/// Reads all data of each checkpoint, with a progress bar on a terminal. Exit code 1 if one is
/// damaged.
Report verify_report(const std::vector<std::filesystem::path>& paths);

/// Compares two checkpoints. Exit code 1 if they differ.
Report diff_report(const std::filesystem::path& one, const std::filesystem::path& other);

/// Removes all but the newest checkpoints, and the files that killed processes left (see
/// remove_stale).
Report prune_report(const std::filesystem::path& folder, const storage::PruneOptions& options);

}  // namespace lockstep::cli
