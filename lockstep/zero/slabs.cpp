// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/slabs.h"

#include <utility>

namespace lockstep::zero {
namespace {

constexpr size_t kSlabs = 3;

}  // namespace

/// One that was left too small for anything is given back, so that no more than the largest units'
/// worth lies idle.
at::DataPtr Slabs::find(size_t bytes) {
  auto best = slabs_.end();
  for (auto slab = slabs_.begin(); slab != slabs_.end(); ++slab) {
    if (slab->bytes >= bytes && slab->bytes <= 2 * bytes &&
        (best == slabs_.end() || slab->bytes < best->bytes)) {
      best = slab;
    }
  }
  if (best == slabs_.end()) {
    if (slabs_.size() == kSlabs) {
      slabs_.erase(slabs_.begin());
    }
    return {};
  }
  at::DataPtr memory = std::move(best->memory);
  slabs_.erase(best);
  return memory;
}

void Slabs::keep(at::DataPtr memory, size_t bytes) {
  if (slabs_.size() < kSlabs) {
    slabs_.push_back({std::move(memory), bytes});
  }
}

}  // namespace lockstep::zero
