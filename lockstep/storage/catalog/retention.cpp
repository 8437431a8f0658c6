// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/catalog/retention.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::storage {
namespace {

namespace fs = std::filesystem;

/// Returns why a checkpoint does not count as one of those to keep; empty if it does.
std::string why_not_counted(const CheckpointEntry& listed, const PruneOptions& options) {
  if (!listed.why.empty()) {
    return listed.why;
  }
  if (options.damaged.contains(listed.path.filename())) {
    return "was found damaged";
  }
  try {
    const StoredCheckpoint verified(listed.path, options.verify);
    return "";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

/// Returns the checkpoints older than those to keep, oldest first.
std::vector<fs::path> beyond_newest(const fs::path& folder, const PruneOptions& options) {
  std::vector<CheckpointEntry> listed = list_checkpoints(folder);
  if (options.only_numbered) {
    std::erase_if(
        listed, [](const CheckpointEntry& item) { return !checkpoint_number(item.path); });
  }
  std::erase_if(listed, [](const CheckpointEntry& item) {
    std::error_code ignored;
    return !item.manifest || fs::is_symlink(item.path, ignored);
  });
  size_t kept_from = listed.size();
  for (int kept = 0; kept_from > 0 && kept < options.keep; --kept_from) {
    const CheckpointEntry& candidate = listed[kept_from - 1];
    const std::string why = why_not_counted(candidate, options);
    if (why.empty()) {
      ++kept;
    } else {
      options.not_counted({candidate.path, why, true});
    }
  }
  std::vector<fs::path> old;
  for (size_t i = 0; i < kept_from; ++i) {
    old.push_back(listed[i].path);
  }
  return old;
}

}  // namespace

std::vector<fs::path> prune(const fs::path& folder, const PruneOptions& options) {
  if (options.keep < 1) {
    throw ConfigError(
        "prune", fmt::format("keep is out of range; got {}, expected 1 or more", options.keep));
  }
  std::vector<fs::path> old = beyond_newest(folder, options);
  if (options.dry_run || old.empty()) {
    return old;
  }
  std::vector<fs::path> removed;
  std::vector<fs::path> renamed;
  std::vector<UniqueFd> held;  // So that no other process removes these at the same time.
  for (const fs::path& path : old) {
    const fs::path name = temporary_name(path);
    UniqueFd mark = mark_as_in_use(path);
    if (!mark.is_open()) {
      continue;
    }
    if (std::rename(path.c_str(), name.c_str()) == 0) {
      held.push_back(std::move(mark));
      removed.push_back(path);
      renamed.push_back(name);
    } else if (errno != ENOENT) {
      throw_errno(path, "cannot be renamed before its removal");
    }
  }
  // The new names must reach the disk before the content is removed.
  sync_folder(folder.empty() ? "." : folder);
  for (const fs::path& path : renamed) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) {
      throw CheckpointError(path, "cannot be removed; " + error.message());
    }
  }
  return removed;
}

}  // namespace lockstep::storage
