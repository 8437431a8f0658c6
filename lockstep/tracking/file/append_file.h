// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/unique_fd.h"

namespace lockstep::tracking {

/// Creates `folder` and its missing parents. Throws ConfigError, naming it, if that fails.
void make_folders(const std::filesystem::path& folder);

/// Returns the bytes of a file; nothing if it cannot be read.
std::optional<std::string> file_bytes(const std::filesystem::path& path);

/// Appends complete records to a file. Each record is one write(2), so that the file of a killed
/// process ends with a complete record. Closed on exec.
///
/// Throws ConfigError if opening fails, and Error later, both with the path and errno's text. A
/// partly written record (a full disk) is removed, so that the next one is readable if it fits.
class AppendFile {
 public:
  /// Creates `path`. Returns false if the name exists.
  bool create(const std::filesystem::path& path);
  /// Opens `path`, or creates it.
  void open(const std::filesystem::path& path);

  void append(std::string_view record);
  /// Flushes everything to disk.
  void sync();
  /// Closes the file. Throws Error for a failure that the system reports only now (a quota). A
  /// second call does nothing.
  void close();

  /// Returns the last byte of a regular file when it was opened; nothing if the file was empty.
  std::optional<char> last_byte() const { return last_byte_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  std::optional<char> last_byte_;
};

}  // namespace lockstep::tracking
