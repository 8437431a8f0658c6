// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <unistd.h>

namespace lockstep::offload {

/// Cuts off every file of this process that lay in `folder` and has no name any more: a disk that
/// loses what it was given. Returns how many. For tests.
inline int cut_off_scratch_files(const std::filesystem::path& folder) {
  int cut = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with(folder.string()) && target.ends_with("(deleted)")) {
      cut += ftruncate(std::stoi(entry.path().filename()), 0) == 0 ? 1 : 0;
    }
  }
  return cut;
}

}  // namespace lockstep::offload
