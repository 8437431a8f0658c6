// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/zero/bucket/bucket_comm_format.h"
#include "lockstep/zero/bucket/bucket_layout.h"
#include "lockstep/zero/bucket/low_precision_policy.h"
#include "lockstep/zero/quantize/quantized_reduction.h"

namespace lockstep::zero {

/// The gradients of one bucket: full until the reduce-scatter ends, then this rank's shard, which
/// accumulates averages.
///
/// Memory: a shard in the update dtype; a full bucket in the communication dtype during reduction.
/// Not thread-safe.
class BucketGradients {
 public:
  /// `layout` (which defines *entry*) and `format` must outlive this. `shard`: the values that
  /// updates act on. `options`: those of the full parameters.
  BucketGradients(
      const BucketLayout& layout,
      BucketCommFormat& format,
      const at::Tensor& shard,
      const at::TensorOptions& options,
      const LowPrecisionPolicy& low_precision_policy);

  /// Moves the gradient of an entry's parameter to the full buffer, and adds `held`. `held`: sum of
  /// earlier backward passes, undefined if none. The gradient or `held` must be defined.
  void take(size_t entry, const at::Tensor& held);
  /// Starts the averaging: entries without a gradient count as zero. Collective.
  void start_reduce();
  /// For 4-bit gradients (two all-to-alls): starts the second once the first is done, and returns
  /// whether it has started. Otherwise returns true. `wait`: waits for the first. Call it in the
  /// order of buckets.
  bool advance(bool wait) { return !quantized_ || quantized_->advance(wait); }
  /// Returns whether `wait` would return at once.
  bool is_reduced() const {
    return quantized_ ? quantized_->done() : !pending_ || pending_->done();
  }
  /// Blocks until the average is available, and frees the full gradients. Throws CommError.
  void wait();
  /// Adds the average of a finished reduction to the shard's gradient, and returns it.
  /// `may_be_abandoned`: backward may still throw, so the previous value is kept for abandon().
  const at::Tensor& add_average(bool may_be_abandoned = false);
  /// Calls `add_average`, then sets the gradients of slices whose entry has a gradient on any rank.
  /// Throws CommError.
  void finish(const std::vector<bool>& has_gradient_on_any_rank);
  /// Drops started operations; with `wait`, after none is running any more.
  void abandon(bool wait) noexcept;

  /// The storage of the slices' gradients; undefined if there is none.
  const at::Tensor& shard_gradient() const { return shard_gradient_; }

 private:
  /// Returns the view of an entry's gradient in the full buffer, which is created if missing.
  at::Tensor full_gradient(size_t entry);
  /// Returns the view of a shard slice's gradient in the shard's.
  at::Tensor slice_gradient(const ShardSlice& shard_slice) const;
  /// Returns whether any slice has a gradient to add to.
  bool has_gradients() const;
  /// Returns whether averages arrive in the dtype in which they are stored.
  bool is_stored_as_sent() const { return comm_options_.dtype() == shard_.dtype(); }

  const BucketLayout& layout_;
  BucketCommFormat& format_;
  at::Tensor shard_;
  at::TensorOptions options_;
  at::TensorOptions comm_options_;  ///< The options of full gradients.
  bool rounds_sums_;
  at::Tensor full_gradients_;  ///< Undefined most of the time.
  std::vector<bool> taken_;    ///< [entry] Since the last reduction.
  at::Tensor average_;         ///< The result of the running reduction.
  at::Tensor shard_gradient_;
  bool is_added_ = false;  ///< The last average was added to `shard_gradient_`.
  at::Tensor previous_;    ///< The value before that, if kept.
  std::optional<Pending> pending_;
  std::unique_ptr<QuantizedReduction> quantized_;
};

}  // namespace lockstep::zero
