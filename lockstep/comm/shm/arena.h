// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/shm/segment.h"

namespace lockstep::comm::shm {

/// A rank's part of the segment from which tensors are made that the other ranks can read where
/// they lie. Memory of a freed tensor goes back to the kernel. First fit; meant for few large
/// buffers, each of which takes whole pages. Thread-safe.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  Arena(std::shared_ptr<Segment> segment, int rank);

  /// `bytes` zeros. The tensor keeps the segment mapped for as long as it lives. Error: no memory.
  at::Tensor allocate(int64_t bytes);
  /// `bytes` zeros that are never given back: they are there for as long as anybody maps the
  /// segment. Error: no memory.
  std::byte* take(size_t bytes);

 private:
  void free(size_t begin, size_t bytes) noexcept;

  std::shared_ptr<Segment> segment_;
  std::byte* base_;
  std::mutex mutex_;
  std::map<size_t, size_t> holes_;  ///< Begin -> bytes; none touches another.
};

}  // namespace lockstep::comm::shm
