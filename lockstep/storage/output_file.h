// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/storage/files.h"

namespace lockstep::checkpoint {

/// A new file, written once from front to back, with its checksum taken on the way: each byte is
/// read from memory once, and hits the disk as it comes (small pieces are collected, large ones are
/// not): the disk begins long before `finish` waits for it.
///
/// The name must be free: nothing is overwritten and no symbolic link followed. CheckpointError for
/// all that the disk refuses, be it at the very end, and for a file beyond the limit on sizes: from
/// the first of these on, SIGXFSZ does nothing unless the program handles it. Thread safety: none.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  /// Removes the file unless `finish` has returned.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Returns the crc32c of these bytes alone.
  uint32_t append(const void* data, size_t size);
  uint32_t append(std::string_view text) { return append(text.data(), text.size()); }
  /// Returns when the disk has it all (fsync), and closes.
  void finish();

  /// Of everything so far.
  uint64_t bytes() const { return bytes_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  void put(const std::byte* data, size_t size);
  void flush();
  void write_out(const std::byte* data, size_t size);
  void sync(uint64_t from, uint64_t to, unsigned how);

  std::filesystem::path path_;
  Descriptor file_;
  std::vector<std::byte> buffer_;
  uint64_t written_ = 0;  ///< Has left the buffer.
  uint64_t begun_ = 0;    ///< Of that, what the disk was told to begin with.
  uint64_t waited_ = 0;   ///< Of that, what is there.
  uint64_t bytes_ = 0;
  uint32_t crc32c_ = 0;
};

}  // namespace lockstep::checkpoint
