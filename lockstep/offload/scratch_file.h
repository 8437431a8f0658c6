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

/// A file of this process alone, for what memory has no room for. It has no name, so nothing is
/// left of it when the process ends, be it by kill -9.
///
/// Room on the disk is taken when it is asked for, not when it is written to, so that a full disk
/// is an error at the start of a training and not within. (Where a file system cannot reserve room,
/// NFS before 4.2 say, it is only looked whether there is enough.) Reads and writes go by way of
/// the kernel's page cache, whose memory is given up when something else needs it.
///
/// Thread-safe, as long as nobody reads what another writes.
class ScratchFile {
 public:
  /// In `folder`. `what`: whose it is, for errors. ConfigError if there is no such folder, or no
  /// file can be made there.
  ScratchFile(const std::filesystem::path& folder, std::string what);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Room for so many bytes more than has been taken; ConfigError, naming the folder, the bytes
  /// wanted, and those that are free.
  void reserve(int64_t bytes);
  /// Where `bytes` begin that nobody else has; zeros. As `reserve`, where that has not been done.
  int64_t take(int64_t bytes);
  /// What `take` of so many bytes takes: whole pages.
  static int64_t rounded(int64_t bytes);

  /// ConfigError, naming the folder, if the disk refuses.
  void read(int64_t offset, void* to, int64_t bytes) const;
  void write(int64_t offset, const void* from, int64_t bytes);
  /// The file itself as memory, which may be read and written: the same bytes as `read` and `write`
  /// know, as they are now. A disk that fails while it is touched ends the
  /// process (SIGBUS), and every first touch of a page waits for the disk, so for what is rare; who
  /// only reads takes `in_memory` of the tensor.
  at::DataPtr map(int64_t offset, int64_t bytes) const;

  int64_t bytes_taken() const { return taken_; }

  /// The file itself, which stays for as long as any memory is it.
  class Opened;

 private:
  std::shared_ptr<Opened> file_;
  std::mutex mutex_;
  int64_t taken_ = 0;
  int64_t size_ = 0;
};

/// `tensor` itself, or, where its memory is what ScratchFile::map gave, a copy of its values that
/// was read from the file: ConfigError, naming the folder, if the disk refuses or the file became
/// shorter, where a touch would end the process. `tensor` is strided, and its memory may be asked
/// for (not of comm::is_sharded_param). Thread-safe, as long as nobody writes to it.
at::Tensor in_memory(const at::Tensor& tensor);

/// The pages of a mapping that lie within leave this process; the file has them.
void let_go_of_pages(void* begin, int64_t bytes);

}  // namespace lockstep::offload
