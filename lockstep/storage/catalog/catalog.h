// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/storage/manifest.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::storage {

/// A skipped folder with the reason, for a warning. Also an entry named checkpoint_<number> that is
/// not a folder: a file, or a dangling symbolic link.
struct SkippedEntry {
  std::filesystem::path path;
  std::string why;
  /// True if it has a manifest, valid or not, or is called checkpoint_<number>. False for the
  /// remains of an unfinished save.
  bool was_checkpoint = false;
};

struct NewestCheckpoint {
  std::optional<std::filesystem::path> path;  ///< Empty if `folder` holds no valid checkpoint.
  std::vector<SkippedEntry> skipped;          ///< Folders that might be newer, sorted by path.
};

/// Finds the checkpoint in `folder` that was committed last and passes `verify`. The highest
/// sequence number counts, not the clock, so copying files changes nothing. Throws CheckpointError
/// if a manifest cannot be read, or is of a newer Lockstep: it may be the newest. Of checkpoints
/// older than the result only the manifest is read. A symbolic link to a checkpoint counts as one.
/// A missing folder has none. Local: with several ranks let one call it and broadcast the result.
NewestCheckpoint find_newest(const std::filesystem::path& folder, Verify verify = Verify::kSizes);

/// A folder that is, or could have been, a checkpoint.
struct CheckpointEntry {
  std::filesystem::path path;
  std::optional<Manifest> manifest;  ///< If there is a valid one.
  std::string why;                   ///< Why it is not a valid checkpoint; empty if it is.
};

/// Lists the entries of `folder` that could be checkpoints: folders, symbolic links to folders, and
/// all entries named checkpoint_<number>. First come those with a manifest, in order of commit,
/// then the others by path. The last one with a manifest and an empty `why` is the newest. A
/// missing folder has none.
std::vector<CheckpointEntry> list_checkpoints(
    const std::filesystem::path& folder, Verify verify = Verify::kSizes);

/// Returns the number of `checkpoint_<number>`, a name that an Accelerator gives. Returns nothing
/// for another name, or if the number has more than 18 digits.
std::optional<int64_t> checkpoint_number(const std::filesystem::path& path);

/// Returns one more than the highest checkpoint_number in `folder`; 0 if it has none.
int64_t next_checkpoint_number(const std::filesystem::path& folder);

/// Returns one more than the highest sequence number in `folder`; 1 if it has none. A folder named
/// checkpoint_<n> counts as n + 1 at least, because the sequence number in a damaged manifest is
/// unknown. Throws CheckpointError if a manifest cannot be read.
int64_t next_sequence(const std::filesystem::path& folder);

/// Replaces `<folder>/latest`, a line of text for people and scripts, by `name`, atomically.
/// find_newest does not use it.
void write_latest(const std::filesystem::path& folder, const std::string& name);

/// Reads the name in `<folder>/latest`; nothing if that file is missing. Throws CheckpointError if
/// the name is not a plain file name.
std::optional<std::string> read_latest(const std::filesystem::path& folder);

}  // namespace lockstep::storage
