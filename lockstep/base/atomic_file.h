// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <sys/types.h>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

/// Writes a small file atomically: under a temporary name first, then renamed. The destructor
/// removes a file that was not renamed. Checkpoint files, which are committed together, use
/// storage/file/output_file.h. After an exception errno has the reason.
class AtomicFile {
 public:
  /// Creates a temporary file next to `target`. Its permissions are `mode` where the file system
  /// has permissions. Throws Error, naming `target`, if that fails.
  explicit AtomicFile(const std::filesystem::path& target, mode_t mode = 0600);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Blocks until `text` is on disk. Throws Error, naming the file, if that fails.
  void write(const std::string& text) const;
  /// Returns false if the name exists and `replace` is false. Throws Error if the rename fails.
  bool rename_to(const std::filesystem::path& target, bool replace);

 private:
  std::string name_;
  UniqueFd file_;
  bool renamed_ = false;
};

/// Creates or replaces the file `path` by an AtomicFile.
void write_atomically(
    const std::filesystem::path& path, const std::string& text, mode_t mode = 0600);

}  // namespace lockstep
