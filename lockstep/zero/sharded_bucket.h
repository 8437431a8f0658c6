// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/layout.h"
#include "lockstep/flat/shard_bounds.h"
#include "lockstep/zero/bucket/shard_store.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/quantize/plus_plus.h"
#include "lockstep/zero/quantize/quantized_reduction.h"

namespace lockstep::zero {

/// The consecutive elements of one parameter that this rank owns.
struct ShardSlice {
  at::Tensor parameter;  ///< The model's.
  int64_t begin = 0;     ///< First element of the flattened parameter.
  /// 1-D leaf, a view of the bucket's shard, which updates act on: fp32 if a trained parameter is
  /// fp16 or bf16.
  at::Tensor values;
};

/// Whether each rank keeps the full parameters or only its shard (ZeRO stage 3).
enum class ParamPlacement {
  kReplicated,  ///< Every rank always has the full values.
  kSharded      ///< Stage 3: unsharded when an operation uses them, and freed afterwards.
};

/// Communication settings of one bucket: process groups, wire dtype, quantization.
struct BucketComm {
  Group parameters;  ///< The ranks that shard the bucket.
  Group gradients;   ///< The same ranks.
  bool quantized_weights = false;
  bool quantized_gradients = false;    ///< With the groups below.
  bool kept_in_8_bits = false;         ///< For sharded, frozen parameters only.
  bool narrow_gradients_only = false;  ///< For parameters that the plan rounds to 16 bits.
  PlusPlusGroups plus_plus = {};
};

/// Parameters in one flat buffer, of which each rank owns an equal part, its shard.
///
/// The constructor copies the parameters into one contiguous, row-major buffer. Parameters created
/// by zero_init are gathered one at a time, so the peak is the largest parameter. Full gradients
/// exist from the first arrival until the end of the reduce-scatter; then only the shard's remain.
///
/// With ZeRO++ parameters are sent in 8 bits, and every rank, also the owner, computes with the
/// dequantized values. The shard stays exact: write-back takes only values that differ from the
/// rounded ones. A secondary shard holds part of the rounded values, equal for each nearby rank.
///
/// Trained fp16 or bf16 parameters have fp32 masters, which are the shard then, and an fp32 shard
/// of gradients. Averages are sent in the parameters' dtype, and accumulate in fp32, unless
/// LowPrecisionPolicy says otherwise.
///
/// A plan may select 16-bit communication for a wider bucket: its gradients are rounded, and so are
/// sharded parameters, with the properties of ZeRO++ above. Replicated parameters are gathered
/// exactly after an update.
///
/// If masters of sharded parameters are on the host or in a file, a shard of the rounded masters
/// may stay here, for the all-gathers; it is recomputed after every update.
///
/// Frozen parameters may be stored in 8 bits: they are rounded once. This rank then has copies of
/// its shard slices (`unpacked`) instead of views.
///
/// Memory: the parameters, or, if sharded, their shard and the full buffer while unsharded; a shard
/// of gradients; with masters their shard in the update dtype; a full bucket of gradients during
/// reduction. Not thread-safe.
class ShardedBucket final : public ShardedUnit {
 public:
  /// `plan`: for `parameters`, from flat::plan_buckets. Frozen parameters have no gradients.
  /// `places`: the storage of a sharded bucket's shard, or of masters; null: with the bucket.
  /// Collective.
  ShardedBucket(
      const flat::BucketPlan& plan,
      const std::vector<at::Tensor>& parameters,
      BucketComm travel,
      ParamPlacement placement,
      ShardPlaces* places = nullptr,
      const LowPrecisionPolicy& low_precision_policy = {});

  const std::vector<flat::BucketEntry>& entries() const { return slots_; }
  /// Returns whether an entry's parameter still uses the bucket's memory.
  bool lies_here(size_t entry) const;
  /// By bucket entry.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<ShardSlice>& shard_slices() const { return slices_; }
  /// By bucket entry: the elements that each rank owns.
  std::vector<flat::ShardBounds> divisions() const;
  bool is_sharded_param() const { return paged_ != nullptr; }
  bool has_masters() const { return store_ && store_->are_masters(); }
  /// The values of this rank's shard; see ShardStore for their storage.
  const at::Tensor& shard() const { return shard_; }
  /// Returns copies of this rank's shard slices if stored in 8 bits; else nothing.
  std::vector<ShardSlice> unpacked() const;
  /// Replaces the stored values by those of such a copy.
  void pack(const ShardSlice& copy);
  /// Null unless the shard is in a file.
  std::shared_ptr<offload::FileTensor> shard_file() const {
    return store_ ? store_->file() : nullptr;
  }

  /// Takes the gradient of an entry's parameter, which is undefined afterwards, and `held`, if
  /// defined, of earlier backwards. At least one of them exists.
  void take_gradient(size_t entry, const at::Tensor& held = {});
  /// Starts the averaging: entries without a gradient count as zero.
  void start_reduce();
  /// With two hops, starts the second one if the first is done, or after waiting for it if `wait`.
  /// Returns whether everything has been started. In the order of buckets.
  bool advance_reduce(bool wait) { return !quantized_ || quantized_->advance(wait); }
  /// Returns whether `wait_reduce` would return at once.
  bool is_reduced() const {
    return quantized_ ? quantized_->done() : !pending_ || pending_->done();
  }
  /// Returns when the average is available; frees the full gradients. Throws CommError.
  void wait_reduce();
  /// Adds the average of a finished reduction to the shard's gradient, and returns it. If backward
  /// may still fail, the previous value is kept until it has ended.
  const at::Tensor& add_average(bool may_be_abandoned = false);
  /// Does that if it has not been done, and sets the gradient of the shard slices of entries with a
  /// gradient on any rank. Throws CommError.
  void finish_reduce(const std::vector<bool>& anywhere);
  /// Adds the memory of this bucket: parameters, masters, and the shard's gradients. Not files, nor
  /// unsharded buffers.
  void add_memory(
      std::vector<at::Tensor>& parameters,
      std::vector<at::Tensor>& masters,
      std::vector<at::Tensor>& gradients) const;
  /// Drops started operations; with `wait`, after none is running any more.
  void abandon(bool wait) noexcept;

  /// Increments the version counters of the parameters before a write, for autograd.
  void bump_versions();
  /// Starts the all-gather of all shards. Collective.
  Pending start_gather(Source source) override;
  void finish_gather(const at::Tensor& came) override;
  bool comm_is_rounded() const override {
    return (comm_.quantized_weights || narrow_) && !comm_.kept_in_8_bits;
  }
  bool keeps_secondary() const override { return comm_.plus_plus.close.size() > 1; }
  void drop_secondary() override {
    secondary_.reset();
    rounded_is_current_ = false;  // What makes second copies stale changes masters, too.
  }
  /// If sharded, or with masters: copies values written to the parameters to the shard.
  void write_back() override;
  /// Only for a sharded bucket.
  FlatParamBuffer& buffer() override { return *paged_; }

 private:
  /// The full values; of a sharded bucket only while it is unsharded.
  const at::Tensor& values() const { return paged_ ? paged_->values() : values_; }
  /// The view of an entry's gradient in the full gradient buffer, which is created if missing.
  at::Tensor whole_gradient(size_t entry);
  /// The view of a shard slice's gradient in the shard's.
  at::Tensor shard_gradient(const ShardSlice& shard_slice) const;

  /// Whether there are any to add to.
  bool has_gradients() const;
  /// Whether averages arrive in the dtype in which they are stored.
  bool come_as_kept() const { return gradient_options_.dtype() == shard_.dtype(); }

  /// Whether the values of the last gather were rounded.
  bool is_rounded() const {
    return comm_.kept_in_8_bits || (comm_is_rounded() && source_ != Source::kExact);
  }
  /// Elements of a shard.
  int64_t shard_numel() const { return length_ / comm_.parameters.size(); }
  /// This rank's shard as a part of the full values.
  at::Tensor own_part() const { return values().narrow(0, first_, shard_numel()); }
  /// The range of an entry's elements in this rank's shard, as bucket offsets.
  std::pair<int64_t, int64_t> own_range(const flat::BucketEntry& entry) const;
  /// Converts a shard to the communication format, (1, bytes) for 8 bits, else 16-bit elements; and
  /// back.
  at::Tensor rounded(const at::Tensor& values) const;
  at::Tensor unrounded(const at::Tensor& wire) const;
  /// The shard, in memory on the bucket's device.
  at::Tensor shard_here();
  /// The tensor that this rank contributes to the all-gather.
  at::Tensor rounded_shard();

  BucketComm comm_;
  std::optional<at::ScalarType> narrow_;  ///< 16-bit communication dtype; none: full width.
  std::vector<flat::BucketEntry> slots_;
  std::vector<at::Tensor> parameters_;  ///< [entry]
  std::unique_ptr<FlatParamBuffer> paged_;
  at::Tensor values_;                  ///< Unless sharded.
  std::unique_ptr<ShardStore> store_;  ///< If sharded, or with masters.
  at::Tensor shard_;
  at::Tensor rounded_masters_;  ///< Undefined unless the rounded masters stay here.
  bool rounded_is_current_ = false;
  at::Tensor kept_;                     ///< Replaces both if stored in 8 bits.
  at::TensorOptions options_;           ///< Of the full values, wherever the shard is stored.
  at::TensorOptions gradient_options_;  ///< Of full gradients.
  bool rounds_sums_ = false;
  int64_t first_ = 0;   ///< The shard's offset in the bucket.
  int64_t length_ = 0;  ///< Of the bucket, including the padding of shards.
  std::vector<ShardSlice> slices_;
  std::vector<size_t> entry_of_slice_;
  at::Tensor gradients_;       ///< Full gradients; undefined most of the time.
  std::vector<bool> taken_;    ///< [entry] Since the last reduction.
  at::Tensor reduced_;         ///< The result of the running reduction.
  at::Tensor shard_gradient_;  ///< The storage of the slices' gradients.
  bool added_ = false;         ///< The last reduction was added to it.
  at::Tensor before_;          ///< Its previous value, if kept.
  std::optional<Pending> pending_;
  std::unique_ptr<QuantizedReduction> quantized_;
  Source source_ = Source::kExact;  ///< Of the last gather.
  at::Tensor secondary_;            ///< The secondary shard; undefined if there is none.
};

}  // namespace lockstep::zero
