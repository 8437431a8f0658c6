// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/write/publish.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <stdio.h>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::storage {
namespace {

namespace fs = std::filesystem;

bool not_supported(int error) {
  return error == EINVAL || error == ENOSYS || error == ENOTSUP;
}

void rename_to_free_name(const fs::path& from, const fs::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return;
  }
  // Plain rename refuses to replace a folder that is not empty.
  if (!not_supported(errno) || name_exists(to) || std::rename(from.c_str(), to.c_str()) != 0) {
    throw_errno(to, "cannot be created by renaming the finished checkpoint " + from.string());
  }
}

bool exchange_names(const fs::path& one, const fs::path& other) {
  if (renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (!not_supported(errno)) {
    throw_errno(other, "cannot be replaced");
  }
  return false;
}

/// Restores the old names after a failed flush, since an error must mean that names are unchanged.
void restore_names(const fs::path& folder, const fs::path& target, const fs::path& old) {
  std::error_code ignored;
  if (old == folder) {
    exchange_names(folder, target);
    return;
  }
  fs::rename(target, folder, ignored);
  if (!old.empty()) {
    fs::rename(old, target, ignored);
  }
}

}  // namespace

fs::path detail::replace_in_two_steps(const fs::path& folder, const fs::path& target) {
  fs::path aside = set_aside_name(target);
  rename_to_free_name(target, aside);
  try {
    rename_to_free_name(folder, target);
  } catch (const CheckpointError&) {
    rename_to_free_name(aside, target);
    throw;
  }
  return aside;
}

void publish(const fs::path& folder, const fs::path& target, bool replace) {
  fs::path old;  // The new name of the old folder.
  // Other processes remove a folder with a temporary name that no process has marked.
  const UniqueFd held = replace ? mark_as_in_use(target) : UniqueFd();
  if (replace) {
    old = exchange_names(folder, target) ? folder : detail::replace_in_two_steps(folder, target);
  } else {
    rename_to_free_name(folder, target);
  }
  const fs::path parent = target.parent_path().empty() ? "." : target.parent_path();
  try {
    sync_folder(parent);
  } catch (const CheckpointError&) {
    restore_names(folder, target, old);
    throw;
  }
  std::error_code ignored;
  if (replace) {
    fs::remove_all(old, ignored);
  }
}

}  // namespace lockstep::storage
