// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::tracking {

/// Creates `folder` and its missing parents; ConfigError, naming it, if that fails.
void make_folders(const std::filesystem::path& folder);

/// A file to which complete records are appended: each is one write(2), so that a file of a killed
/// process ends with a complete record. Closed on exec. Not thread-safe.
///
/// A failure while opening is a ConfigError, later an Error, both with path and errno's text. A
/// partly written record (a full disk) is removed, so that the next one is readable if it fits.
class AppendFile {
 public:
  /// Creates `path`; false if the name exists.
  bool create(const std::filesystem::path& path);
  /// Opens `path`, or creates it.
  void open(const std::filesystem::path& path);
  AppendFile() = default;
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view record);
  /// Flushes everything to disk.
  void sync();
  /// Closes; a failure that the system reports only now (a quota) is an Error. A second call does
  /// nothing.
  void close();

  /// The last byte a regular file had when opened; nothing if it was empty.
  std::optional<char> last_byte() const { return last_byte_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::optional<char> last_byte_;
};

}  // namespace lockstep::tracking
