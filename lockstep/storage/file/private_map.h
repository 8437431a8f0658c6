// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/storage/file/files.h"

namespace lockstep::storage {

/// A complete file mapped into memory. Writes to the memory do not change the file; a page needs
/// its own memory only after a write.
///
/// The kernel answers an access to an unreadable page, or to a truncated file, with SIGBUS. So call
/// `fetch` before an access. It cannot help if a file shrinks, or its pages are evicted and the
/// disk then fails, between a fetch and the access: that still ends the process. Code that must
/// survive even that reads blocks, as verify_content does.
///
/// Thread safety: immutable.
class PrivateMap {
 public:
  /// Throws CheckpointError, naming the path, for a symbolic link unless `links` allows it, for
  /// anything but a regular file, and if it cannot be mapped.
  explicit PrivateMap(const std::filesystem::path& path, Links links = Links::kRefuse);
  ~PrivateMap();
  PrivateMap(const PrivateMap&) = delete;
  PrivateMap& operator=(const PrivateMap&) = delete;

  /// Null if the file is empty.
  std::byte* data() const { return data_; }
  std::string_view bytes() const { return {reinterpret_cast<const char*>(data_), size_}; }
  /// Reads that part of the file into the page cache. Throws CheckpointError, naming the path and
  /// `tensor`, for a disk error. Costs as much as the first access, which then costs nothing. No
  /// effect on Linux before 5.14.
  void fetch(size_t begin, size_t size, const std::string& tensor = "") const;

 private:
  std::string path_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lockstep::storage
