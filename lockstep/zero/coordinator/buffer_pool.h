// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <c10/core/Allocator.h>

namespace lockstep::zero {

/// The CPU's memory that units have left, a few of them: fetched anew it would have to be mapped
/// anew, and lie between what training leaves. Thread safety: none.
class BufferPool {
 public:
  /// The smallest that is large enough, and not much too large; null if there is none.
  at::DataPtr find(size_t bytes);
  /// Kept if there is room for it, else given back.
  void keep(at::DataPtr memory, size_t bytes);

 private:
  struct PooledBuffer {
    at::DataPtr memory;
    size_t bytes;
  };
  std::vector<PooledBuffer> buffer_pool_;
};

}  // namespace lockstep::zero
