// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/shard_bounds.h"
#include "lockstep/zero/bucket/bucket_comm_format.h"
#include "lockstep/zero/bucket/bucket_gradients.h"
#include "lockstep/zero/bucket/bucket_layout.h"
#include "lockstep/zero/bucket/bucket_storage.h"
#include "lockstep/zero/bucket/shard_store.h"
#include "lockstep/zero/coordinator/sharded_unit.h"

namespace lockstep::zero {

/// Parameters in one flat buffer. Each rank owns an equal part, its shard.
///
/// The constructor copies the parameters into one contiguous, row-major buffer. Parameters created
/// by zero_init are gathered one at a time, so the peak is the largest parameter.
///
/// With ZeRO++ parameters are sent in 8 bits, and every rank, also the owner, computes with the
/// dequantized values. The shard stays exact: write-back takes only values that differ from the
/// rounded ones.
///
/// Trained fp16 or bf16 parameters have an fp32 shard of masters and an fp32 shard of gradients.
/// Averages are sent in the parameters' dtype and accumulate in fp32, unless LowPrecisionPolicy
/// says otherwise.
///
/// A plan may select 16-bit communication for an fp32 or fp64 bucket: gradients are rounded to 16
/// bits, and so are sharded parameters, which then behave as with ZeRO++ above. Replicated
/// parameters are gathered exactly after an update.
///
/// Frozen parameters may be stored in 8 bits, rounded once. This rank then has copies of its shard
/// slices (`dequantized`) instead of views.
///
/// Memory: the parameters; if sharded, their shard, and the full buffer while unsharded. Also the
/// shard of masters in the update dtype, and BucketGradients. Not thread-safe.
class ShardedBucket final : public ShardedUnit {
 public:
  /// `plan`: for `parameters`, from flat::plan_buckets. Frozen parameters have no gradients.
  /// `places`: the storage of a sharded bucket's shard, or of masters; null: on the bucket's
  /// device. Collective.
  ShardedBucket(
      const flat::BucketPlan& plan,
      const std::vector<at::Tensor>& parameters,
      BucketComm comm,
      ParamPlacement placement,
      ShardPlaces* places = nullptr,
      const LowPrecisionPolicy& low_precision_policy = {});

  const std::vector<flat::BucketEntry>& entries() const { return layout_.entries; }
  /// Returns whether an entry's parameter still uses the bucket's memory.
  bool is_in_bucket(size_t entry) const;
  /// By bucket entry.
  const std::vector<at::Tensor>& parameters() const { return layout_.parameters; }
  const std::vector<ShardSlice>& shard_slices() const { return layout_.slices; }
  /// By bucket entry: the elements that each rank owns.
  std::vector<flat::ShardBounds> shard_bounds() const { return layout_.bounds(); }
  bool is_sharded() const { return buffer_of(storage_) != nullptr; }
  bool has_masters() const {
    const ShardStore* store = store_of(storage_);
    return store != nullptr && store->are_masters();
  }
  /// Returns whether the shard is stored in 8 bits.
  bool is_quantized() const { return std::holds_alternative<ShardedQuantized>(storage_); }
  /// The values of this rank's shard; see ShardStore for their storage.
  const at::Tensor& shard() const { return shard_; }
  /// Null unless the shard is in a file.
  std::shared_ptr<offload::FileTensor> shard_file() const {
    const ShardStore* store = store_of(storage_);
    return store == nullptr ? nullptr : store->file();
  }
  /// Returns copies of this rank's shard slices if the bucket is stored in 8 bits; else nothing.
  std::vector<ShardSlice> dequantized() const;
  /// Replaces the stored values by those of a copy from `dequantized`.
  void store_quantized(const ShardSlice& copy);

  /// Only for trained parameters.
  BucketGradients& gradients() { return *gradients_; }
  /// Adds the memory of this bucket: parameters, masters, and the shard's gradients. Not files, nor
  /// unsharded buffers.
  void add_memory(
      std::vector<at::Tensor>& parameters,
      std::vector<at::Tensor>& masters,
      std::vector<at::Tensor>& gradients) const;

  /// Increments the version counters of the parameters before a write, for autograd.
  void bump_versions();
  /// Starts the all-gather of all shards. Collective.
  Pending start_gather(Source source) override;
  void finish_gather(const at::Tensor& received) override {
    format_.finish_gather(received, values());
  }
  bool comm_is_rounded() const override { return format_.rounds(); }
  bool keeps_secondary() const override { return format_.keeps_secondary(); }
  /// Also recomputes rounded masters, since a change that makes secondary shards stale changes
  /// masters, too.
  void drop_secondary() override;
  /// Copies values written to the parameters to the shard, unless the shard is a part of them.
  void write_back() override;
  /// Only for a sharded bucket.
  FlatParamBuffer& buffer() override { return *buffer_of(storage_); }

 private:
  /// Returns this rank's shard, to be filled with its values; of 8-bit storage a temporary one.
  at::Tensor initial_shard() const;
  /// Moves a parameter to the next entry.
  void add_parameter(const at::Tensor& parameter);
  /// The full values; of a sharded bucket only while it is unsharded.
  const at::Tensor& values() const {
    return std::visit(
        [](const auto& kind) -> const at::Tensor& { return kind.values(); }, storage_);
  }
  /// Returns this rank's shard as a part of the full values.
  at::Tensor own_part() const {
    return values().narrow(0, layout_.shard_begin, layout_.shard_numel);
  }

  BucketLayout layout_;
  at::TensorOptions options_;  ///< The full values'.
  BucketCommFormat format_;
  BucketStorage storage_;
  at::Tensor shard_;  ///< Undefined if stored in 8 bits.
  std::unique_ptr<BucketGradients> gradients_;
};

}  // namespace lockstep::zero
