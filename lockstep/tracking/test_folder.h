// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/test_folder.h"

namespace lockstep::tracking {

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// The payloads of all whole records of an event file. Throws where a length or checksum is wrong.
std::vector<std::string> records_of(const std::string& bytes);

/// Runs `body` in a process whose files may grow to `bytes` and no further, as on a disk that is
/// full. Returns its exit code.
int run_with_file_limit(
    size_t bytes,
    int (*body)(const std::filesystem::path& folder),
    const std::filesystem::path& folder);

}  // namespace lockstep::tracking
