// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/storage/file/files.h"

namespace lockstep::storage {

/// Temporary names with their owner: `<target>.tmp-<host>-<pid>-<16 hex digits>`, a checkpoint
/// being written, and `<target>.old-...`, one being replaced.
std::filesystem::path temporary_name(const std::filesystem::path& target);
std::filesystem::path set_aside_name(const std::filesystem::path& target);

/// Returns whether `name` is of one of these kinds.
bool is_temporary_name(std::string_view name);

/// A new folder with mode 0700, marked as in use (flock) while this object lives. After the death
/// of the process the mark stays while a forked child lives. The destructor leaves the folder.
class OwnedFolder {
 public:
  /// Throws CheckpointError if the name exists, or the folder cannot be created.
  explicit OwnedFolder(const std::filesystem::path& path);
  ~OwnedFolder();
  OwnedFolder(const OwnedFolder&) = delete;
  OwnedFolder& operator=(const OwnedFolder&) = delete;

 private:
  UniqueFd lock_;
};

/// Marks an existing folder in the same way, before it gets a temporary name. The result is not
/// open if the folder is gone, or another process has marked it. It is open without a mark if the
/// file system has none. Throws CheckpointError if the folder cannot be opened.
UniqueFd mark_as_in_use(const std::filesystem::path& path);

/// Cleans up in `parent` after processes that died during a save. Removes unfinished checkpoints
/// and, after an interrupted replacement, restores the old checkpoint's name. Only handles this
/// user's temporary names:
///
/// - a folder of this host without a mark, even if its pid exists, which may be reused;
/// - a folder of another host, whose marks may be invisible here: also not written to for a day;
/// - if the file system has no marks: a folder of this host whose process is gone;
/// - a file, which has no mark: if its process is gone, or after a day.
///
/// Returns the handled ones. Thread-safe, never throws: an entry that cannot be removed stays.
///
/// A `model.tmp-...` with an index may hold the only weights of a model, see write_model_files. It
/// stays unless `finish` is given, which is called with it first, and may throw to keep it.
std::vector<std::filesystem::path> remove_stale(
    const std::filesystem::path& parent,
    const std::function<void(const std::filesystem::path&)>& finish = {}) noexcept;

}  // namespace lockstep::storage
