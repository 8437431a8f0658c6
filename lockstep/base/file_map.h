// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <sys/mman.h>
#include <sys/types.h>
#include <utility>

namespace lockstep {

/// A file, or a part of one, mapped into memory (mmap). The destructor unmaps it. The kernel
/// answers an access beyond the end of a file that has shrunk with SIGBUS.
class FileMap {
 public:
  FileMap() = default;
  /// Maps `size` bytes of `fd` from `offset` on, with mmap's `protection` and `flags`. The
  /// descriptor can be closed afterwards. If it fails, is_mapped() is false, and errno has the
  /// reason.
  FileMap(int fd, size_t size, int protection, int flags, off_t offset = 0) : size_(size) {
    if (size > 0) {  // mmap refuses a length of zero.
      void* const begin = ::mmap(nullptr, size, protection, flags, fd, offset);
      data_ = begin == MAP_FAILED ? nullptr : static_cast<std::byte*>(begin);
    }
  }
  FileMap(FileMap&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  FileMap& operator=(FileMap&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~FileMap() {
    if (data_ != nullptr) {
      ::munmap(data_, size_);
    }
  }

  /// Returns true also for a map of zero bytes.
  bool is_mapped() const { return data_ != nullptr || size_ == 0; }
  /// Null if nothing is mapped.
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lockstep
