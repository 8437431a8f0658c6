// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/storage/files.h"

namespace lockstep::checkpoint {

/// A whole file in memory, to be read, or written without the file ever changing: a page costs
/// memory of its own once written to, and nothing before.
///
/// What the disk cannot read, or a file that became shorter, the kernel answers with SIGBUS where
/// memory is merely touched. So `fetch` comes before that. It cannot help where a file shrinks, or
/// its pages are dropped from memory and the disk then fails, between a fetch and the touch: that
/// still ends the process. Whoever must survive even that reads blocks, as check_content does.
///
/// Thread safety: immutable.
class PrivateMap {
 public:
  /// CheckpointError, naming the path, for a symbolic link unless `links` allows it, for what is no
  /// regular file, and if it cannot be mapped.
  explicit PrivateMap(const std::filesystem::path& path, Links links = Links::kRefuse);
  ~PrivateMap();
  PrivateMap(const PrivateMap&) = delete;
  PrivateMap& operator=(const PrivateMap&) = delete;

  /// Null if the file is empty.
  std::byte* data() const { return data_; }
  std::string_view bytes() const { return {reinterpret_cast<const char*>(data_), size_}; }
  /// Has that part of the file read. CheckpointError, naming the path and `tensor`, which it
  /// belongs to, if it cannot be read. Costs what touching it costs, which then costs nothing.
  /// Linux before 5.14 knows no such thing; there it does nothing.
  void fetch(size_t begin, size_t size, const std::string& tensor = "") const;

 private:
  std::string path_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lockstep::checkpoint
