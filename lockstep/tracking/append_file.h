// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::tracking {

/// Creates `folder` and its parents where they are missing; ConfigError, naming it, where that
/// fails.
void make_folders(const std::filesystem::path& folder);

/// A file that only grows, by whole records: each is one write(2), so a process killed between two
/// records leaves a file that ends with a whole one. Closed on exec. Thread safety: none.
///
/// What fails while opening is a ConfigError, later an Error, both with path and errno's text. A
/// record that fits only in part (a full disk) is taken back, so that the next one is readable if
/// it fits.
class AppendFile {
 public:
  /// Creates `path`; false if something of that name exists already.
  bool create(const std::filesystem::path& path);
  /// Opens `path`, and creates it if it does not exist.
  void open(const std::filesystem::path& path);
  AppendFile() = default;
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view record);
  /// Waits until all of it is on disk.
  void sync();
  /// Closes; a failure that the system reports only now (a quota) is an Error. Twice is once.
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
