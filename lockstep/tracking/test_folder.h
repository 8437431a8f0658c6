// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// Returns the payloads of all complete records of an event file. Throws for a wrong length or
/// checksum.
std::vector<std::string> records_of(const std::string& bytes);

/// Runs `body` in a process whose files are limited to `bytes`, as on a full disk. Returns the exit
/// code.
int run_with_file_limit(
    size_t bytes,
    int (*body)(const std::filesystem::path& folder),
    const std::filesystem::path& folder);

/// Logs until an error. Returns 0 if its message has all `texts`, 2 if not, 1 without an error.
int log_until_full(Tracker& tracker, const std::vector<std::string>& texts);

}  // namespace lockstep::tracking
