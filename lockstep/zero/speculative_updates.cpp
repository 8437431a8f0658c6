// SPDX-License-Identifier: Apache-2.0
// Updates of shards that begin while backward still runs.
#include <algorithm>

#include "lockstep/zero/sharding.h"

namespace lockstep::zero {

int64_t Sharding::version_of(size_t index) const {
  int64_t sum = 0;
  for (const at::Tensor& parameter : buckets_[index]->parameters()) {
    sum += parameter.unsafeGetTensorImpl()->version_counter().current_version();
  }
  return sum;
}

void Sharding::note_finished() {
  if (!early_.begin) {
    return;
  }
  settled_.resize(buckets_.size());
  for (size_t index = 0; index < buckets_.size(); ++index) {
    settled_[index] = version_of(index);
  }
}

void Sharding::begin_speculative(size_t index) {
  if (!early_.begin || speculative_begun_[index] || !early_.due()) {
    return;
  }
  const ShardedBucket& bucket = *buckets_[index];
  if ((bucket.is_sharded_param() || bucket.has_masters()) && version_of(index) != settled_[index]) {
    return;  // What was written to parameters is not in the shard yet.
  }
  const bool all = std::all_of(members_[index].begin(), members_[index].end(), [this](size_t i) {
    return present_[i];  // Those that no rank has are not updated.
  });
  if (!all) {
    return;
  }
  speculative_begun_[index] = version_of(index);
  const auto [group, shard] = shard_of_[index];
  early_.begin(group, shard, buckets_[index]->add_average(/*may_be_abandoned=*/true));
}

void Sharding::discard_speculative(size_t index) {
  if (speculative_begun_[index]) {
    speculative_begun_[index].reset();
    const auto [group, shard] = shard_of_[index];
    early_.forget(group, shard);
  }
}

void Sharding::discard_speculative(bool only_if_written) {
  if (!early_.begin) {
    return;
  }
  for (size_t index = 0; index < buckets_.size(); ++index) {
    if (!only_if_written || speculative_begun_[index] != version_of(index)) {
      discard_speculative(index);
    }
  }
}

}  // namespace lockstep::zero
