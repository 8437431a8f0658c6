// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "lockstep/accelerator/checkpointing/saving_groups.h"
#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/file/project_lock.h"

namespace lockstep::internal {

/// Manages the folder of a run's checkpoints: keeps other jobs out, numbers checkpoints, finds the
/// newest one, and removes old ones. Not thread-safe, except for `finish_save`'s result.
class ProjectFolder {
 public:
  /// Checks that the folder can be written. Takes its lock, unless the program names all folders
  /// of checkpoints itself. Without a project_dir it only determines who writes checkpoints. Throws
  /// ConfigError for save_on_each_node with ranks that are not numbered by host; throws
  /// CheckpointError if the folder cannot be used. Collective.
  explicit ProjectFolder(const RunContext& context);

  const SavingGroups& groups() const { return groups_; }
  /// Returns the number of files that one process writes at a time; the same on all ranks.
  int writers_per_rank() const { return writers_per_rank_; }

  /// Returns `<project_dir>/checkpoints`. Throws ConfigError without a project_dir.
  std::filesystem::path checkpoints() const;
  /// Returns the folder of the next checkpoint. Collective.
  std::filesystem::path next_checkpoint();
  /// Returns the newest usable checkpoint, or nothing if there is none. Warns of those that cannot
  /// be used; throws CheckpointError if none of them can, or hosts differ. Collective.
  std::optional<std::filesystem::path> newest_checkpoint(storage::Verify verify);
  /// Returns a function that marks the saved `folder` as the newest checkpoint, and removes old
  /// ones beyond the limit. The function is collective over its argument.
  std::function<void(const SavingGroups&)> finish_save(const std::filesystem::path& folder) const;

 private:
  void take_lock();

  const RunContext& context_;
  SavingGroups groups_;
  int writers_per_rank_ = 1;
  /// Keeps other jobs out; held by the leading process of each disk.
  std::optional<storage::ProjectLock> lock_;
  /// Names of checkpoints that a resume skipped, which do not count for the limit; known to the
  /// leading process of each disk.
  std::set<std::string> damaged_;
};

}  // namespace lockstep::internal
