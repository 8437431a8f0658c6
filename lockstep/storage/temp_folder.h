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

/// A new folder that only this user may enter, marked as in use (flock) as long as this lives or a
/// process has it open that was forked off meanwhile. Destroying it leaves the folder there.
class OwnedFolder {
 public:
  /// CheckpointError if the name is taken, or the folder cannot be made.
  explicit OwnedFolder(const std::filesystem::path& path);

 private:
  Descriptor lock_;
};

/// Cleans up in `parent` after processes of this host that died in the middle of a save: removes
/// what they were writing and, where replacing stopped half way, gives the old checkpoint its name
/// back. Touches only folders of this user with a temporary name of this host that no process marks
/// as in use, and whose process is gone (or has this process's number, as in a restarted
/// container). Returns those it dealt with. Thread-safe, never throws: what cannot be removed
/// stays.
///
/// The weights of a model, see write_model_files, may be there alone: a `model.tmp-...` with an
/// index in it stays, too, unless `finish` is given, which is called with it first, and may throw
/// if it is to stay.
std::vector<std::filesystem::path> remove_stale(
    const std::filesystem::path& parent,
    const std::function<void(const std::filesystem::path&)>& finish = {}) noexcept;

}  // namespace lockstep::checkpoint
