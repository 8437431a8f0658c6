// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/file/private_map.h"

#include <cerrno>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::storage {
namespace {

/// Returns whether the error of madvise means that an access would raise SIGBUS.
bool is_read_error(int error) {
  return error == EFAULT || error == EIO || error == EHWPOISON;
}

std::string reason_of(int error) {
  return error == EFAULT ? "the file was truncated, or its disk fails"
                         : std::generic_category().message(error);
}

}  // namespace

PrivateMap::PrivateMap(const std::filesystem::path& path, Links links) : path_(path) {
  const auto [file, bytes] = open_regular(path, links);
  size_ = bytes;
  if (size_ == 0) {
    return;  // mmap refuses an empty range.
  }
  // Without NORESERVE a host without overcommit would count the file as used memory.
  void* mapping =
      mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (mapping == MAP_FAILED) {
    throw_errno(path, fmt::format("cannot be mapped ({} bytes)", size_));
  }
  data_ = static_cast<std::byte*>(mapping);
}

void PrivateMap::fetch(size_t begin, size_t size, const std::string& tensor) const {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (size == 0) {
    return;
  }
  const size_t past_page = begin % page;
  // Other errors are ignored: if they matter, the access fails.
  if (madvise(data_ + begin - past_page, size + past_page, MADV_POPULATE_READ) != 0 &&
      is_read_error(errno)) {
    throw CheckpointError(
        path_,
        fmt::format(
            "cannot be read: {}, at bytes {} to {}; try an earlier checkpoint, or another copy",
            reason_of(errno),
            begin,
            begin + size),
        tensor);
  }
}

PrivateMap::~PrivateMap() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

}  // namespace lockstep::storage
