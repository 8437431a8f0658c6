// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/shm/segment.h"

namespace lockstep::comm::shm {

/// Allocates tensors in a rank's part of the segment, where other ranks read them in place.
///
/// The memory of a freed tensor is returned to the kernel. First fit, in full pages, for a few
/// large buffers. Thread-safe.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  Arena(std::shared_ptr<Segment> segment, int rank);

  /// Allocates `bytes` zeros. The tensor keeps the segment mapped. Throws Error if no memory is
  /// left.
  at::Tensor allocate(int64_t bytes);
  /// Allocates `bytes` zeros that are never freed: they exist while any process maps the segment.
  /// Throws Error if no memory is left.
  std::byte* take(size_t bytes);

 private:
  void free(size_t begin, size_t bytes) noexcept;

  std::shared_ptr<Segment> segment_;
  std::byte* base_;
  std::mutex mutex_;
  std::map<size_t, size_t> holes_;  ///< Begin -> bytes; holes are never adjacent.
};

}  // namespace lockstep::comm::shm
