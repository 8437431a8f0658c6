// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <unistd.h>

namespace lockstep::offload {

/// Truncates every unnamed file of this process in `folder`, as a disk that loses data. Returns how
/// many. For tests.
inline int cut_off_scratch_files(const std::filesystem::path& folder) {
  int cut = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!error && target.starts_with(folder.string()) && target.ends_with("(deleted)")) {
      cut += ftruncate(std::stoi(entry.path().filename()), 0) == 0 ? 1 : 0;
    }
  }
  return cut;
}

}  // namespace lockstep::offload
