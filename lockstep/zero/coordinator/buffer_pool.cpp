// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/buffer_pool.h"

#include <utility>

namespace lockstep::zero {
namespace {

constexpr size_t kPooledBuffers = 3;

}  // namespace

/// One that was left too small for anything is given back, so that no more than the largest units'
/// worth lies idle.
at::DataPtr BufferPool::find(size_t bytes) {
  auto best = buffer_pool_.end();
  for (auto slab = buffer_pool_.begin(); slab != buffer_pool_.end(); ++slab) {
    if (slab->bytes >= bytes && slab->bytes <= 2 * bytes &&
        (best == buffer_pool_.end() || slab->bytes < best->bytes)) {
      best = slab;
    }
  }
  if (best == buffer_pool_.end()) {
    if (buffer_pool_.size() == kPooledBuffers) {
      buffer_pool_.erase(buffer_pool_.begin());
    }
    return {};
  }
  at::DataPtr memory = std::move(best->memory);
  buffer_pool_.erase(best);
  return memory;
}

void BufferPool::keep(at::DataPtr memory, size_t bytes) {
  if (buffer_pool_.size() < kPooledBuffers) {
    buffer_pool_.push_back({std::move(memory), bytes});
  }
}

}  // namespace lockstep::zero
