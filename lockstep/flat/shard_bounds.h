// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::flat {

/// The ranges of one parameter that each rank owns: rank r has elements bounds[r] to bounds[r + 1],
/// in row-major order. Many ranges are empty.
struct ShardBounds {
  std::vector<int64_t> sizes;   ///< The parameter's.
  std::vector<int64_t> bounds;  ///< [ranks + 1] From 0 to the number of elements.

  int64_t numel() const { return bounds.back(); }
  int64_t begin(int rank) const { return bounds[static_cast<size_t>(rank)]; }
  int64_t length(int rank) const { return bounds[static_cast<size_t>(rank) + 1] - begin(rank); }
};

}  // namespace lockstep::flat
