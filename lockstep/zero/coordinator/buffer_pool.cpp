// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/buffer_pool.h"

#include <utility>

namespace lockstep::zero {
namespace {

constexpr size_t kPooledBuffers = 3;

}  // namespace

/// Frees the oldest buffer if the pool is full and none fits, so that small buffers do not fill the
/// pool.
at::DataPtr BufferPool::find(size_t bytes) {
  auto best = buffers_.end();
  for (auto buffer = buffers_.begin(); buffer != buffers_.end(); ++buffer) {
    if (buffer->bytes >= bytes && buffer->bytes <= 2 * bytes &&
        (best == buffers_.end() || buffer->bytes < best->bytes)) {
      best = buffer;
    }
  }
  if (best == buffers_.end()) {
    if (buffers_.size() == kPooledBuffers) {
      buffers_.erase(buffers_.begin());
    }
    return {};
  }
  at::DataPtr memory = std::move(best->memory);
  buffers_.erase(best);
  return memory;
}

void BufferPool::keep(at::DataPtr memory, size_t bytes) {
  if (buffers_.size() < kPooledBuffers) {
    buffers_.push_back({std::move(memory), bytes});
  }
}

}  // namespace lockstep::zero
