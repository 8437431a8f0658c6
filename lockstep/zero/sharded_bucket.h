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
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/quantize/plus_plus.h"
#include "lockstep/zero/quantize/quantized_reduction.h"
#include "lockstep/zero/shard_store.h"

namespace lockstep::zero {

/// What this rank owns of one parameter: consecutive elements.
struct ShardSlice {
  at::Tensor parameter;  ///< The model's.
  int64_t begin = 0;     ///< First element of the flattened parameter.
  at::Tensor values;     ///< 1-D and a leaf; a view of the bucket's shard. What is updated: fp32
                         ///< where a trained parameter is fp16 or bf16.
};

/// What becomes of a bucket's values, all of which are in use now and then.
enum class ParamPlacement {
  kReplicated,  ///< Every rank has them all the time.
  kSharded      ///< They come when an operation touches them, and go again: stage 3.
};

/// How what a bucket needs travels.
struct BucketComm {
  Group parameters;  ///< Among whom the bucket is divided.
  Group gradients;   ///< The same ranks.
  bool quantized_weights = false;
  bool quantized_gradients = false;    ///< By the groups below.
  bool kept_in_8_bits = false;         ///< Only of what is paged and frozen.
  bool narrow_gradients_only = false;  ///< Of what the plan says is rounded to 16 bits.
  PlusPlusGroups plus_plus = {};
};

/// Some parameters in one flat buffer, of which each rank owns an equal part, its shard.
///
/// Laying out moves the parameters' memory, row by row whatever their strides were; those that were
/// built in parts are brought one after the other. Gradients are held whole between the first that
/// arrives and the end of the reduce-scatter, and after it only the shard's.
///
/// With ZeRO++ parameters travel in 8 bits and are what these say, on the rank that owns them, too:
/// all compute with equal bits. The shard stays exact: of what is written back only what differs
/// from the rounded values is taken. A second copy is a part of those, equal for each close rank.
///
/// Trained parameters of fp16 or bf16 have fp32 masters, which are the shard then, and a shard of
/// gradients in fp32. The averages travel in the parameters' dtype, and add up in fp32; unless
/// LowPrecisionPolicy says otherwise.
///
/// A plan may say that a bucket of more than 16 bits an element is rounded to them on its way: its
/// gradients are, and, of one that is paged, its parameters, of which all that is said of ZeRO++
/// holds. Those that are kept come together to the bit after an update.
///
/// Of paged ones whose masters lie elsewhere, on the host or in a file, a shard of what these round
/// to may stay here, from which parameters come together; it is made anew after every update.
///
/// Frozen ones may be kept in 8 bits, as they travel: rounded once, that is what they are then.
/// This rank has no pieces of such, only copies (`unpacked`).
///
/// Memory: parameters, or, if paged, a shard of them and all while a Pager says so; a shard of
/// gradients; with masters a shard of these, as they are updated; a bucket of gradients while they
/// are under way. Thread safety: none.
class ShardedBucket final : public ShardedUnit {
 public:
  /// `plan`: of `parameters`, as flat::plan_buckets makes it. Where parameters are frozen there are
  /// no gradients. `places`: where a shard may lie that is paged, or masters; null: with it.
  /// Collective.
  ShardedBucket(
      const flat::BucketPlan& plan,
      const std::vector<at::Tensor>& parameters,
      BucketComm travel,
      ParamPlacement placement,
      ShardPlaces* places = nullptr,
      const LowPrecisionPolicy& low_precision_policy = {});

  const std::vector<flat::BucketEntry>& entries() const { return slots_; }
  /// Whether a slot's parameter still is what lies here, and has got no other memory since.
  bool lies_here(size_t entry) const;
  /// By slots.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<ShardSlice>& shard_slices() const { return slices_; }
  /// By slots, which of their elements each rank has.
  std::vector<flat::ShardBounds> divisions() const;
  bool is_sharded_param() const { return paged_ != nullptr; }
  bool has_masters() const { return store_ && store_->are_masters(); }
  /// The values of this rank's shard; see ShardStore for where.
  const at::Tensor& shard() const { return shard_; }
  /// Of what is kept in 8 bits, this rank's pieces, as copies; else nothing.
  std::vector<ShardSlice> unpacked() const;
  /// The values of such a copy are what is kept from now on.
  void pack(const ShardSlice& copy);
  /// Null unless they lie in a file.
  std::shared_ptr<offload::FileTensor> shard_file() const {
    return store_ ? store_->file() : nullptr;
  }

  /// Takes what autograd has put into the gradient of a slot's parameter, which is undefined then,
  /// and `held`, if defined, of earlier backwards. One of them is.
  void take_gradient(size_t entry, const at::Tensor& held = {});
  /// Starts to average: what was not taken counts as zero.
  void start_reduce();
  /// Of two hops, starts the second once the first is through, for which it waits if told to.
  /// Returns whether all has been started. In the order of buckets.
  bool advance_reduce(bool wait) { return !quantized_ || quantized_->advance(wait); }
  /// Whether `wait_reduce` would return at once.
  bool is_reduced() const {
    return quantized_ ? quantized_->done() : !pending_ || pending_->done();
  }
  /// Returns when the average is there; the memory of the whole gradients is given back. Throws
  /// CommError.
  void wait_reduce();
  /// Adds the average to the shard's gradient, which it gives. Of one that is reduced. If backward
  /// may fail still, what there was is kept till it has ended.
  const at::Tensor& add_average(bool may_be_abandoned = false);
  /// Does so, if it was not yet, and gives it to the pieces of those slots of which any rank had a
  /// gradient. Throws CommError.
  void finish_reduce(const std::vector<bool>& anywhere);
  /// Adds the memory that is kept here: parameters, masters, and the shard's gradients. Not what
  /// lies in a file, nor what comes and goes.
  void add_memory(
      std::vector<at::Tensor>& parameters,
      std::vector<at::Tensor>& masters,
      std::vector<at::Tensor>& gradients) const;
  /// Forgets what was started; with `wait`, once nothing is under way any more.
  void abandon(bool wait) noexcept;

  /// Autograd must notice that values are about to change.
  void bump_versions();
  /// Starts to bring all shards' values together. Collective.
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
  /// If paged, or with masters: what was written to the parameters is taken into the shard.
  void write_back() override;
  /// Only of one that is paged.
  FlatParamBuffer& buffer() override { return *paged_; }

 private:
  /// All values: of one that is paged, only to be touched while they are there.
  const at::Tensor& values() const { return paged_ ? paged_->values() : values_; }
  /// Where the gradient of a slot lies in the whole bucket's, which is made if there is none.
  at::Tensor whole_gradient(size_t entry);
  /// Where that of a piece lies in the shard's.
  at::Tensor shard_gradient(const ShardSlice& shard_slice) const;

  /// Whether there are any to add to.
  bool has_gradients() const;
  /// Whether averages come in the dtype in which they are kept.
  bool come_as_kept() const { return gradient_options_.dtype() == shard_.dtype(); }

  /// Whether the values of the last gather came in fewer bits.
  bool is_rounded() const {
    return comm_.kept_in_8_bits || (comm_is_rounded() && source_ != Source::kExact);
  }
  /// Elements of a shard.
  int64_t shard_numel() const { return length_ / comm_.parameters.size(); }
  /// Where this rank's shard lies among all values.
  at::Tensor own_part() const { return values().narrow(0, first_, shard_numel()); }
  /// The elements of a slot that lie in this rank's shard: from and to, in the bucket.
  std::pair<int64_t, int64_t> own_range(const flat::BucketEntry& entry) const;
  /// As elements travel in fewer bits: of a shard in 8, (1, bytes), else as many in 16; and back.
  at::Tensor rounded(const at::Tensor& values) const;
  at::Tensor unrounded(const at::Tensor& wire) const;
  /// The shard, where it can be computed with.
  at::Tensor shard_here();
  /// What all ranks get of this rank's shard.
  at::Tensor rounded_shard();

  BucketComm comm_;
  std::optional<at::ScalarType> narrow_;  ///< What values are rounded to on their way.
  std::vector<flat::BucketEntry> slots_;
  std::vector<at::Tensor> parameters_;  ///< [slot]
  std::unique_ptr<FlatParamBuffer> paged_;
  at::Tensor values_;                  ///< Unless paged.
  std::unique_ptr<ShardStore> store_;  ///< If paged, or with masters.
  at::Tensor shard_;
  at::Tensor rounded_masters_;  ///< Undefined unless what masters round to stays here.
  bool rounded_is_current_ = false;
  at::Tensor kept_;                     ///< In the place of both, if kept in 8 bits.
  at::TensorOptions options_;           ///< Of all values, wherever the shard is.
  at::TensorOptions gradient_options_;  ///< Of whole gradients.
  bool rounds_sums_ = false;
  int64_t first_ = 0;   ///< Where the shard begins.
  int64_t length_ = 0;  ///< Of the bucket, what pads the shards included.
  std::vector<ShardSlice> slices_;
  std::vector<size_t> entry_of_slice_;
  at::Tensor gradients_;       ///< Of all; undefined most of the time.
  std::vector<bool> taken_;    ///< [slot] Since the last reduction.
  at::Tensor reduced_;         ///< What the reduction under way gives.
  at::Tensor shard_gradient_;  ///< Behind those of the pieces.
  bool added_ = false;         ///< Of the last reduction, to that.
  at::Tensor before_;          ///< What that was before, if it was kept.
  std::optional<Pending> pending_;
  std::unique_ptr<QuantizedReduction> quantized_;
  Source source_ = Source::kExact;  ///< Of the last gather.
  at::Tensor secondary_;            ///< Undefined if there is none.
};

}  // namespace lockstep::zero
