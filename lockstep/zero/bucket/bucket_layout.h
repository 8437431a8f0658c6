// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/shard_bounds.h"

namespace lockstep::zero {

/// The consecutive elements of one parameter that this rank owns.
struct ShardSlice {
  at::Tensor parameter;  ///< The model's.
  int64_t begin = 0;     ///< First element of the flattened parameter.
  /// 1-D leaf, a view of the bucket's shard, which updates act on: fp32 if a trained parameter is
  /// fp16 or bf16.
  at::Tensor values;
};

/// The positions of parameters, and of this rank's shard, in one flat buffer. An *entry* is a
/// parameter's place in the bucket.
struct BucketLayout {
  /// Divides the bucket evenly among the ranks of `group`. Parameters and slices are added later.
  BucketLayout(const flat::BucketPlan& plan, const Group& group);

  /// Returns the range of an entry's elements in this rank's shard, as offsets in the bucket. The
  /// range is empty if begin >= end.
  std::pair<int64_t, int64_t> own_range(size_t entry) const {
    const flat::BucketEntry& place = entries[entry];
    return {
        std::max(place.offset, shard_begin),
        std::min(place.offset + place.numel, shard_begin + shard_numel)};
  }
  /// Returns, by entry, the elements that each rank owns.
  std::vector<flat::ShardBounds> bounds() const;

  std::vector<flat::BucketEntry> entries;
  std::vector<at::Tensor> parameters;  ///< [entry]
  int64_t shard_numel;
  int64_t shard_begin;  ///< The first element of this rank's shard.
  int64_t numel;        ///< Elements of the bucket, including the padding of shards.
  std::vector<ShardSlice> slices;
  std::vector<size_t> entry_of_slice;
};

}  // namespace lockstep::zero
