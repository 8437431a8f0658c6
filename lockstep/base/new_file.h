// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

/// Writes a small file atomically: under a temporary name first, then renamed. The destructor
/// removes a file that was not renamed. Mode 0600. Large checkpoint files, which are committed
/// together, use storage/file/output_file.h.
///
/// Not thread-safe.
class NewFile {
 public:
  /// Creates a temporary file next to `target`. Throws Error, naming `target`, if that fails.
  explicit NewFile(const std::filesystem::path& target);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Blocks until `text` is on disk. Throws Error, naming the file, if that fails.
  void write(const std::string& text) const;
  /// Returns false if the name exists and `replace` is false. Throws Error if the rename fails.
  bool rename_to(const std::filesystem::path& target, bool replace);

 private:
  std::string name_;
  UniqueFd file_;
  bool renamed_ = false;
};

}  // namespace lockstep
