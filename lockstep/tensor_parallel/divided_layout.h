// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep::tensor_parallel {

/// Which elements of a tensor each rank of a group has: equal parts of one dimension, or of each of
/// several blocks in it (fused layers).
///
/// Thread safety: immutable.
class DividedLayout {
 public:
  /// `fused`: relative sizes of the blocks; empty: one block. Throws ConfigError unless each
  /// block's size is a multiple of `ranks`.
  DividedLayout(
      std::vector<int64_t> full_sizes, int64_t dim, const std::vector<int64_t>& fused, int ranks);

  int64_t dim() const { return dim_; }
  const std::vector<int64_t>& full_sizes() const { return full_sizes_; }
  std::vector<int64_t> own_sizes() const;
  /// Returns the index of a rank's first element of the only block.
  int64_t begin(int rank) const { return blocks_.front() / ranks_ * rank; }

  /// Returns a copy of the part of `full` that `rank` has.
  at::Tensor own_part(const at::Tensor& full, int rank) const;
  /// Puts the parts of all ranks of `group` together. Collective.
  at::Tensor full(const at::Tensor& own, Group& group) const;

 private:
  std::vector<int64_t> full_sizes_;
  int64_t dim_;
  std::vector<int64_t> blocks_;  ///< Their sizes in elements.
  int ranks_;
};

}  // namespace lockstep::tensor_parallel
