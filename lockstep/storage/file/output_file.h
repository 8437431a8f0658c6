// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/storage/file/files.h"

namespace lockstep::storage {

/// A new file, written once from start to end, with a running checksum. Each byte is read from
/// memory once and written early, so that little is left for `finish`; only small writes are
/// collected.
///
/// The name must be free: nothing is overwritten and no symbolic link followed. Throws
/// CheckpointError for disk errors, including those at the very end, and for a file beyond the size
/// limit. For that the first instance makes the process ignore SIGXFSZ unless the program handles
/// it.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  /// Removes the file unless `finish` has returned.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Returns the crc32c of only these bytes.
  uint32_t append(const void* data, size_t size);
  uint32_t append(std::string_view text) { return append(text.data(), text.size()); }
  /// Flushes everything to disk (fsync), and closes.
  void finish();

  /// Return the number and the checksum of all bytes so far.
  uint64_t bytes() const { return bytes_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  void put(const std::byte* data, size_t size);
  void flush();
  void write_out(const std::byte* data, size_t size);
  void sync(uint64_t from, uint64_t to, unsigned how);

  std::filesystem::path path_;
  UniqueFd file_;
  std::vector<std::byte> buffer_;
  uint64_t written_ = 0;  ///< Bytes written from the buffer.
  uint64_t begun_ = 0;    ///< Part of it whose flush was started.
  uint64_t waited_ = 0;   ///< Part of it that is on disk.
  uint64_t bytes_ = 0;
  uint32_t crc32c_ = 0;
};

}  // namespace lockstep::storage
