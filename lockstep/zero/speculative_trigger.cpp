// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/speculative_trigger.h"

#include <algorithm>
#include <utility>

namespace lockstep::zero {

void SpeculativeTrigger::set_callbacks(SpeculativeCallbacks callbacks) {
  callbacks_ = std::move(callbacks);
  mark_synced();
}

int64_t SpeculativeTrigger::version_of(size_t index) const {
  int64_t sum = 0;
  for (const at::Tensor& parameter : model_.buckets()[index]->parameters()) {
    sum += parameter.unsafeGetTensorImpl()->version_counter().current_version();
  }
  return sum;
}

void SpeculativeTrigger::mark_synced() {
  if (!enabled()) {
    return;
  }
  synced_version_.resize(begun_version_.size());
  for (size_t index = 0; index < synced_version_.size(); ++index) {
    synced_version_[index] = version_of(index);
  }
}

void SpeculativeTrigger::begin(size_t index, const std::vector<bool>& present) {
  if (!enabled() || begun_version_[index] || !callbacks_.due()) {
    return;
  }
  ShardedBucket& bucket = *model_.buckets()[index];
  if ((bucket.is_sharded() || bucket.has_masters()) &&
      version_of(index) != synced_version_[index]) {
    return;  // The shard lacks values that were written to parameters.
  }
  const std::vector<size_t>& members = model_.members()[index];
  const bool all =
      std::all_of(members.begin(), members.end(), [&](size_t i) { return present[i]; });
  if (!all) {
    return;  // A parameter that has a gradient on no rank is not updated.
  }
  begun_version_[index] = version_of(index);
  const auto [group, shard] = model_.shard_of(index);
  callbacks_.begin(group, shard, bucket.gradients().add_average(/*may_be_abandoned=*/true));
}

void SpeculativeTrigger::discard(size_t index) {
  if (begun_version_[index]) {
    begun_version_[index].reset();
    const auto [group, shard] = model_.shard_of(index);
    callbacks_.discard(group, shard);
  }
}

void SpeculativeTrigger::discard_all() {
  for (size_t index = 0; index < begun_version_.size(); ++index) {
    discard(index);
  }
}

void SpeculativeTrigger::discard_written() {
  for (size_t index = 0; index < begun_version_.size(); ++index) {
    if (begun_version_[index] && *begun_version_[index] != version_of(index)) {
      discard(index);
    }
  }
}

}  // namespace lockstep::zero
