// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/private_map.h"

#include <sys/mman.h>

namespace lockstep::checkpoint {

PrivateMap::PrivateMap(const std::filesystem::path& path, Links links) {
  const auto [file, bytes] = open_regular(path, links);
  size_ = bytes;
  if (size_ == 0) {
    return;  // mmap refuses to map nothing.
  }
  // Without NORESERVE a host that does not overcommit would count the file as memory in use.
  void* mapping =
      mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (mapping == MAP_FAILED) {
    throw_errno(path, "cannot be mapped");
  }
  data_ = static_cast<std::byte*>(mapping);
}

PrivateMap::~PrivateMap() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

}  // namespace lockstep::checkpoint
