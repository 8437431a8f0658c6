// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace lockstep::offload {

/// An unnamed file of this process, for data that memory cannot hold. It is removed with the
/// process, also after kill -9.
///
/// Disk space is allocated when it is requested, not when it is written to, so that a full disk is
/// an error at the start of a training. On file systems that cannot reserve space, for instance NFS
/// before 4.2, only the free space is checked. Reads and writes use the kernel's page cache.
///
/// Thread-safe, as long as no thread reads bytes that another one writes.
class ScratchFile {
 public:
  /// Creates the file in `folder`. `what`: its purpose, for errors. Throws ConfigError if the
  /// folder does not exist, or the file cannot be created.
  ScratchFile(const std::filesystem::path& folder, std::string what);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Allocates `bytes` more. Throws ConfigError with the folder, the requested and the free bytes.
  void reserve(int64_t bytes);
  /// Returns the offset of `bytes` unused bytes, which are zeros. Allocates as `reserve` if
  /// necessary.
  int64_t take(int64_t bytes);
  /// Returns the size that `take` uses for `bytes`: full pages.
  static int64_t rounded(int64_t bytes);

  /// Throws ConfigError with the folder for a disk error.
  void read(int64_t offset, void* to, int64_t bytes) const;
  void write(int64_t offset, const void* from, int64_t bytes);
  /// Maps the file as readable and writable memory, consistent with `read` and `write`. It is for
  /// rare use: every first access to a page waits for the disk, and a disk error during an access
  /// ends the process (SIGBUS). Read with `in_memory` instead.
  at::DataPtr map(int64_t offset, int64_t bytes) const;

  int64_t bytes_taken() const { return taken_; }

  /// The file, which lives as long as any mapping of it.
  class Opened;

 private:
  std::shared_ptr<Opened> file_;
  std::mutex mutex_;
  int64_t taken_ = 0;
  int64_t size_ = 0;
};

/// Returns `tensor` or, if its memory is a mapping from ScratchFile::map, a copy read from the
/// file. Throws ConfigError with the folder for a disk error or a truncated file, which would end
/// the process on access. `tensor` must be strided, and its memory accessible (not
/// comm::is_sharded_param). Thread-safe, as long as no thread writes to it.
at::Tensor in_memory(const at::Tensor& tensor);

/// Releases the pages of the mapping from this process; the file keeps the data.
void release_pages(void* begin, int64_t bytes);

}  // namespace lockstep::offload
