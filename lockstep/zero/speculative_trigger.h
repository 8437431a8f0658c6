// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/zero/sharded_model.h"

namespace lockstep::zero {

/// Callbacks of speculative updates, which act on copies while backward still runs. Called on
/// autograd's threads.
struct SpeculativeCallbacks {
  /// Returns whether an update follows the running backward.
  std::function<bool()> due;
  /// Begins the update of shard `index` of a group with `gradient`, in the shard's layout.
  std::function<void(size_t group, size_t index, const at::Tensor& gradient)> begin;
  /// Called before that gradient, or one of its parameters, is written to.
  std::function<void(size_t group, size_t index)> discard;
};

/// Tracks the buckets whose updates have begun while backward still runs.
///
/// An update begins only if all parameters of its bucket have a gradient on this rank, and the
/// shard has all values that a program wrote. A write to a parameter discards the update. Does
/// nothing without callbacks. Not thread-safe.
class SpeculativeTrigger {
 public:
  /// `model` must outlive this.
  explicit SpeculativeTrigger(ShardedModel& model)
      : model_(model), begun_version_(model.buckets().size()) {}

  void set_callbacks(SpeculativeCallbacks callbacks);
  bool enabled() const { return callbacks_.begin != nullptr; }
  /// Begins the update of the reduced bucket `index`; only the first call has an effect. `present`:
  /// by parameter, whether this rank has a gradient.
  void begin(size_t index, const std::vector<bool>& present);
  void discard(size_t index);
  void discard_all();
  /// Discards the updates of buckets whose parameters were written to.
  void discard_written();
  /// Records that the shards have all values of the parameters.
  void mark_synced();

 private:
  /// Returns a counter that every write to a bucket's parameters increments.
  int64_t version_of(size_t index) const;

  ShardedModel& model_;
  SpeculativeCallbacks callbacks_;
  std::vector<std::optional<int64_t>> begun_version_;  ///< [bucket] When its update began.
  std::vector<int64_t> synced_version_;                ///< [bucket] At the last `mark_synced`.
};

}  // namespace lockstep::zero
