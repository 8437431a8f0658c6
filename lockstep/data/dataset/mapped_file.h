// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::data {

/// A file mapped into memory for reading. Uses address space, and pages only as they are touched;
/// ranks of one host share them. The file must not shrink while it is mapped: reading beyond its
/// end raises SIGBUS.
///
/// Thread safety: immutable.
class MappedFile {
 public:
  /// Throws ConfigError with the path if it cannot be opened and mapped or is not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Null if the file is empty. Writing to the memory ends the process with SIGSEGV.
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lockstep::data
