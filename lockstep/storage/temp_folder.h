// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/storage/files.h"

namespace lockstep::checkpoint {

/// Names that say whose they are: `<target>.tmp-<host>-<pid>-<16 hex digits>`, a checkpoint being
/// written, and `<target>.old-...`, one being replaced.
std::filesystem::path temporary_name(const std::filesystem::path& target);
std::filesystem::path set_aside_name(const std::filesystem::path& target);

/// True for both kinds of name.
bool is_temporary_name(std::string_view name);

/// A new folder that only this user may enter, marked as in use (flock) as long as this lives; if
/// the process dies, as long as one lives that it has forked off meanwhile. Destroying it leaves
/// the folder there.
class OwnedFolder {
 public:
  /// CheckpointError if the name is taken, or the folder cannot be made.
  explicit OwnedFolder(const std::filesystem::path& path);
  ~OwnedFolder();
  OwnedFolder(const OwnedFolder&) = delete;
  OwnedFolder& operator=(const OwnedFolder&) = delete;

 private:
  Descriptor lock_;
};

/// Marks a folder that is there in the same way, before it gets a temporary name. Not open if it is
/// gone, or if another process has marked it; where the file system has no marks, open without one.
/// CheckpointError if it cannot be opened.
Descriptor mark_as_in_use(const std::filesystem::path& path);

/// Cleans up in `parent` after processes that died in the middle of a save: removes what they were
/// writing and, where replacing stopped half way, gives the old checkpoint its name back. Touches
/// only what belongs to this user and has a temporary name. Of this host, a folder that no process
/// marks as in use, whatever has become of its process: its number may be another's by now. Of
/// another host, whose marks need not be seen here, one that moreover nobody has written to for a
/// day. Where the file system has no marks: if its process is gone, and it is of this host. A file,
/// which nobody marks: if its process is gone, or after a day. Returns those it dealt with.
/// Thread-safe, never throws: what cannot be removed stays.
///
/// The weights of a model, see write_model_files, may be there alone: a `model.tmp-...` with an
/// index in it stays, too, unless `finish` is given, which is called with it first, and may throw
/// if it is to stay.
std::vector<std::filesystem::path> remove_stale(
    const std::filesystem::path& parent,
    const std::function<void(const std::filesystem::path&)>& finish = {}) noexcept;

}  // namespace lockstep::checkpoint
