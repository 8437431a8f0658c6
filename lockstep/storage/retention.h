// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace lockstep::checkpoint {

struct PruneOptions {
  int keep = 1;          ///< So many of the newest stay.
  bool dry_run = false;  ///< Only say what would go.
  /// Touch and count only `checkpoint_<digits>`, the names that an Accelerator numbers; one that
  /// somebody gave a name of his own neither goes nor takes the place of one that stays.
  bool only_numbered = false;
};

/// Removes checkpoints from `folder` until the `keep` newest are left, and returns what was
/// removed, oldest first. Which are newest is told by the order of commits, not by names or the
/// clock.
///
/// Touches folders with a valid manifest alone: nothing else in `folder`, no symbolic link, no save
/// that is going on. One whose files are not all there (see Verify::kSizes) does not count among
/// the newest, so that `keep` usable ones stay; it goes when it is older than all of them.
///
/// Each gets a temporary name first, so that whatever dies in the middle leaves nothing half
/// removed under the name of a checkpoint, and remove_stale does the rest. One that somebody else
/// removes meanwhile is passed over. CheckpointError if one cannot be renamed or removed;
/// ConfigError if `keep` is below 1.
std::vector<std::filesystem::path> prune(
    const std::filesystem::path& folder, const PruneOptions& options);

}  // namespace lockstep::checkpoint
