// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/zero/coordinator/sharded_unit.h"
#include "lockstep/zero/quantize/plus_plus.h"

namespace lockstep::zero {

/// Communication settings of one bucket: process groups, wire dtype, quantization.
struct BucketComm {
  Group parameter_group;  ///< The ranks that shard the bucket.
  /// The same ranks. In stage 3 it is a separate group: gradients are reduced in order of buckets,
  /// but parameters are gathered in order of operations.
  Group gradient_group;
  bool quantized_weights = false;
  bool quantized_gradients = false;  ///< With the groups below.
  bool quantized_storage = false;    ///< Shards are stored in 8 bits: frozen parameters only.
  /// The plan's 16-bit communication dtype is for gradients only.
  bool comm_dtype_for_gradients_only = false;
  PlusPlusGroups plus_plus = {};
};

/// The wire format of one bucket: parameters are sent in their own dtype, in 16 bits or in 8 bits.
///
/// Gradients are sent in their own dtype or in 16 bits here, and in 4 bits by QuantizedReduction.
/// Keeps the secondary shard (hpZ): after a gather from all ranks, this rank's 1/P of the values,
/// where P is zero_hpz_partition_size. Not thread-safe.
class BucketCommFormat {
 public:
  /// `plan` has the communication dtype. `options`: those of the full values, of `numel` elements.
  BucketCommFormat(
      BucketComm comm,
      const flat::BucketPlan& plan,
      const at::TensorOptions& options,
      int64_t numel);

  const BucketComm& comm() const { return comm_; }
  /// The 16-bit communication dtype of gradients; none: their own dtype.
  std::optional<at::ScalarType> gradient_dtype() const { return gradient_dtype_; }
  /// Returns whether an all-gather with Source::kShards rounds the values that it sends. False for
  /// shards stored in 8 bits, which are rounded already.
  bool rounds() const { return (comm_.quantized_weights || dtype_) && !comm_.quantized_storage; }

  /// Converts a shard to the wire format, (1, bytes) for 8 bits, else 16-bit elements; and back.
  at::Tensor encode(const at::Tensor& shard) const;
  at::Tensor decode(const at::Tensor& encoded) const;

  /// Sets the source of the next all-gather.
  void set_source(Source source) { source_ = source; }
  /// Returns whether the values of that all-gather are rounded.
  bool is_rounded() const {
    return comm_.quantized_storage || (rounds() && source_ != Source::kExact);
  }
  /// Starts an all-gather into `full` of secondary, encoded or exact shards. Collective.
  Pending gather_secondary(const at::Tensor& full);
  Pending gather_encoded(const at::Tensor& encoded) {
    return comm_.parameter_group.all_gather(encoded);
  }
  Pending gather_exact(const at::Tensor& full, const at::Tensor& shard) {
    return comm_.parameter_group.all_gather_into(full, shard);
  }
  /// Stores the result of an all-gather in `full`. Local.
  void finish_gather(const at::Tensor& received, const at::Tensor& full);
  /// Starts the reduce-scatter of full gradients to this rank's shard of averages. Collective.
  Pending reduce_scatter(const at::Tensor& average, const at::Tensor& gradients) {
    return comm_.gradient_group.reduce_scatter_into(average, gradients, ReduceOp::kAvg);
  }

  bool keeps_secondary() const { return comm_.plus_plus.hpz.size() > 1; }
  /// The secondary shard; undefined if none is stored.
  const at::Tensor& secondary() const { return secondary_; }
  void drop_secondary() { secondary_.reset(); }

 private:
  int64_t shard_numel() const { return numel_ / comm_.parameter_group.size(); }

  BucketComm comm_;
  std::optional<at::ScalarType> gradient_dtype_;
  std::optional<at::ScalarType> dtype_;  ///< The 16-bit dtype of parameters; none: their own.
  at::TensorOptions options_;
  int64_t numel_;
  Source source_ = Source::kExact;
  at::Tensor secondary_;
};

}  // namespace lockstep::zero
