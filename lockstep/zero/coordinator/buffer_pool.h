// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <c10/core/Allocator.h>

namespace lockstep::zero {

/// A small pool of CPU memory of resharded units. It avoids mapping new pages for each all-gather,
/// and fragmentation. Not thread-safe.
class BufferPool {
 public:
  /// Returns the smallest buffer of at least `bytes` and at most twice as many; null if none fits.
  at::DataPtr find(size_t bytes);
  /// Keeps the buffer if the pool has room, else frees it.
  void keep(at::DataPtr memory, size_t bytes);

 private:
  struct PooledBuffer {
    at::DataPtr memory;
    size_t bytes;
  };
  std::vector<PooledBuffer> buffers_;
};

}  // namespace lockstep::zero
