// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep::offload {

/// Where, in memory that several tensors have in common, the next one may begin: as an allocator's
/// memory does.
constexpr int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace lockstep::offload
