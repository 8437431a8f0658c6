// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "lockstep/storage/files.h"

namespace lockstep::checkpoint {

/// A whole file in memory, to be read, or written without the file ever changing: a page costs
/// memory of its own once written to, and nothing before. The file must not shrink while it is
/// mapped: the kernel answers a read beyond its end with SIGBUS.
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

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lockstep::checkpoint
