// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep::offload {

/// The alignment of tensors in shared memory, that of an allocator.
constexpr int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace lockstep::offload
