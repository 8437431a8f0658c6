// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/bucket/bucket_layout.h"

namespace lockstep::zero {
namespace {

// A shard begins on a cache line, and consists of full vectors of any dtype.
constexpr int64_t kGrain = 64;

int64_t shard_length(int64_t numel, int size) {
  const int64_t each = (numel + size - 1) / size;
  return (each + kGrain - 1) / kGrain * kGrain;
}

}  // namespace

BucketLayout::BucketLayout(const flat::BucketPlan& plan, const Group& group)
    : entries(plan.entries),
      shard_numel(shard_length(plan.numel, group.size())),
      shard_begin(shard_numel * group.rank()),
      numel(shard_numel * group.size()) {}

std::vector<flat::ShardBounds> BucketLayout::bounds() const {
  std::vector<flat::ShardBounds> all;
  for (size_t entry = 0; entry < entries.size(); ++entry) {
    flat::ShardBounds& of_entry = all.emplace_back();
    of_entry.sizes = parameters[entry].sizes().vec();
    for (int64_t end = 0; end <= numel; end += shard_numel) {
      of_entry.bounds.push_back(
          std::clamp(end - entries[entry].offset, int64_t{0}, entries[entry].numel));
    }
  }
  return all;
}

}  // namespace lockstep::zero
