// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

/// A folder that was passed over, and why, fit for a warning. Also what is named
/// checkpoint_<number> and is none: a file, a symbolic link to nothing.
struct Skipped {
  std::filesystem::path path;
  std::string why;
  /// It was a checkpoint: it has a manifest, whatever is in it, or is called checkpoint_<number>.
  /// Not what a save left that did not end.
  bool was_checkpoint = false;
};

struct Newest {
  std::optional<std::filesystem::path> path;  ///< Empty if `folder` holds no valid checkpoint.
  std::vector<Skipped> skipped;  ///< Folders that could have been newer, sorted by path.
};

/// The checkpoint in `folder` that was committed last and passes `verify`. Committed last means the
/// highest sequence number, not the clock, so that copying files about changes nothing.
/// CheckpointError where a manifest is there and cannot be read, or was written by a newer
/// Lockstep: it may be the newest's. No checkpoint older than the one found is looked into beyond
/// its manifest. A symbolic link to a checkpoint counts as one. An absent folder holds none. Local:
/// with several ranks let one ask and tell the others.
Newest find_newest(const std::filesystem::path& folder, Verify verify = Verify::kSizes);

/// A folder that is a checkpoint, or could have been one.
struct Listed {
  std::filesystem::path path;
  std::optional<Manifest> manifest;  ///< If there is a valid one.
  std::string why;                   ///< Why it is no valid checkpoint; empty if it is one.
};

/// All folders in `folder` that could be checkpoints, symbolic links to such, and whatever else is
/// named checkpoint_<number>: first those with a manifest, in the order in
/// which they were committed, then the others by path. So the last one with a manifest and without
/// a `why` is the newest. An absent folder holds none.
std::vector<Listed> list_checkpoints(
    const std::filesystem::path& folder, Verify verify = Verify::kSizes);

/// The number in `checkpoint_<number>`, the names an Accelerator gives; nothing for another name,
/// and for a number that none of its checkpoints will have.
std::optional<int64_t> checkpoint_number(const std::filesystem::path& path);

/// One more than the highest sequence number in `folder`, and than the highest checkpoint_number,
/// for the sequence number of one whose manifest is damaged is not known; 1 if there is none.
/// CheckpointError where a manifest is there and cannot be read.
int64_t next_sequence(const std::filesystem::path& folder);

/// Replaces `<folder>/latest`, a line of text for people and scripts, by `name`; readers see the
/// old or the new one, never half of it. find_newest does not need it.
void write_latest(const std::filesystem::path& folder, const std::string& name);

/// What it says, nothing if there is none. CheckpointError if it is no plain name.
std::optional<std::string> read_latest(const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint
