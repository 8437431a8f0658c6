// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/storage/catalog/catalog.h"

namespace lockstep::storage {

struct PruneOptions {
  int keep = 1;          ///< Number of newest checkpoints to keep.
  bool dry_run = false;  ///< Only return what would be removed.
  /// Only considers `checkpoint_<digits>`, an Accelerator's names; others are neither removed nor
  /// counted.
  bool only_numbered = false;
  /// The verification that a checkpoint must pass to be counted. Applied from the newest on, until
  /// `keep` have passed; kFull reads these completely.
  Verify verify = Verify::kFull;
  /// Names of folders that are known to be damaged.
  std::set<std::string> damaged = {};
  /// Called for each checked checkpoint that is not counted.
  std::function<void(const SkippedEntry&)> not_counted = [](const SkippedEntry& /*unused*/) {};
};

/// Removes checkpoints from `folder` except the `keep` newest, by order of commit, and returns the
/// removed ones, oldest first. Only folders with a valid manifest are removed: no other entries in
/// `folder`, no symbolic links, no running saves. The target of a symbolic link is not counted. A
/// damaged checkpoint is not counted, so that `keep` complete ones stay. It is removed if it is
/// older than all of them, and otherwise stays for inspection.
///
/// Each gets a temporary name first, so that an interruption leaves no partly removed checkpoint
/// under its name; remove_stale removes the rest. A checkpoint that another process removes or
/// replaces meanwhile is skipped. Throws CheckpointError if one cannot be renamed or removed.
/// Throws ConfigError if `keep` is below 1.
std::vector<std::filesystem::path> prune(
    const std::filesystem::path& folder, const PruneOptions& options);

}  // namespace lockstep::storage
