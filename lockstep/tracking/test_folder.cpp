// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/test_folder.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"

namespace lockstep::tracking {
namespace {

uint64_t little_endian(const std::string& bytes, size_t at, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes.at(at + i))) << (8 * i);
  }
  return value;
}

void expect_checksum(const std::string& bytes, size_t begin, size_t size) {
  const uint32_t expected = masked_crc32c(crc32c(bytes.substr(begin, size)));
  if (little_endian(bytes, begin + size, 4) != expected) {
    throw std::runtime_error("wrong checksum at byte " + std::to_string(begin + size));
  }
}

}  // namespace

std::vector<std::string> records_of(const std::string& bytes) {
  std::vector<std::string> records;
  size_t at = 0;
  while (at + 12 <= bytes.size()) {
    expect_checksum(bytes, at, 8);
    const size_t size = little_endian(bytes, at, 8);
    if (at + 16 + size > bytes.size()) {
      break;
    }
    expect_checksum(bytes, at + 12, size);
    records.push_back(bytes.substr(at + 12, size));
    at += 16 + size;
  }
  return records;
}

int run_with_file_limit(
    size_t bytes,
    int (*body)(const std::filesystem::path& folder),
    const std::filesystem::path& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    // Without the signal a write beyond the limit fails, completely or in part, like on a full
    // disk.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::_exit(body(folder));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int log_until_full(Tracker& tracker, const std::vector<std::string>& texts) {
  for (int step = 0; step < 100; ++step) {
    try {
      tracker.log({{"loss", 0.5}}, step);
    } catch (const Error& error) {
      const std::string what = error.what();
      const auto is_in_message = [&](const std::string& text) {
        return what.find(text) != std::string::npos;
      };
      return std::ranges::all_of(texts, is_in_message) ? 0 : 2;
    }
  }
  return 1;
}

}  // namespace lockstep::tracking
