// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/storage/catalog.h"

namespace lockstep::checkpoint {

struct PruneOptions {
  int keep = 1;          ///< So many of the newest stay.
  bool dry_run = false;  ///< Only say what would go.
  /// Touch and count only `checkpoint_<digits>`, the names that an Accelerator numbers; one that
  /// somebody gave a name of his own neither goes nor takes the place of one that stays.
  bool only_numbered = false;
  /// What one must pass to count among those that stay. Of each, from the newest on, until `keep`
  /// have passed; kFull reads these all through.
  Verify verify = Verify::kFull;
  /// Names of folders that are known not to be whole.
  std::set<std::string> damaged = {};
  /// Told of each, among those looked at, that does not count.
  std::function<void(const Skipped&)> not_counted = [](const Skipped& /*unused*/) {};
};

/// Removes checkpoints from `folder` until the `keep` newest are left, and returns what was
/// removed, oldest first. Which are newest is told by the order of commits, not by names or the
/// clock.
///
/// Touches folders with a valid manifest alone: nothing else in `folder`, no symbolic link, no save
/// that is going on. What a symbolic link leads to does not count among the newest either. One that
/// is damaged does not count among the newest, so that `keep` whole ones stay, and if there are no
/// more than that nothing goes. It goes itself when it is older than all of them; a newer one
/// stays, for somebody to look at.
///
/// Each gets a temporary name first, so that whatever dies in the middle leaves nothing half
/// removed under the name of a checkpoint, and remove_stale does the rest. One that somebody else
/// removes, or replaces, meanwhile is passed over. CheckpointError if one cannot be renamed or
/// removed; ConfigError if `keep` is below 1.
std::vector<std::filesystem::path> prune(
    const std::filesystem::path& folder, const PruneOptions& options);

}  // namespace lockstep::checkpoint
