// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/sync/backward_hooks.h"
#include "lockstep/sync/gradient_sync.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/quantize/plus_plus.h"
#include "lockstep/zero/sharded_bucket.h"

namespace lockstep::zero {

struct ShardingOptions {
  /// Largest bucket in bytes. Smaller: less memory for gradients in transfer, more messages.
  int64_t cap_bytes = int64_t{25} << 20;
  /// Largest first bucket in bytes, small so that the first message starts early.
  int64_t first_cap_bytes = int64_t{1} << 20;
  bool broadcast_buffers = true;
  /// Sets of parameters that form a bucket each, of any size. A bucket has parameters of one
  /// optimizer group; a unit with several groups has a bucket for each.
  std::vector<std::vector<at::Tensor>> units = {};
  /// kSharded is stage 3: ranks unshard parameters only while operations use them.
  ParamPlacement placement = ParamPlacement::kReplicated;
  /// Stage 3 does not shard parameters of up to this many elements.
  int64_t keep_up_to_elements = 0;
  /// The limit of their elements in all, in the order of the parameters.
  int64_t keep_in_all = std::numeric_limits<int64_t>::max();
  ParamCoordinatorOptions coordinator = {};
  /// Only for sharded parameters.
  PlusPlusOptions plus_plus = {};
  /// Only for sharded parameters: where each rank's shard is stored.
  OffloadParam offload = {};
  /// Where fp32 masters are stored; for sharded parameters only if `offload` does not say it. The
  /// rounded masters stay with the bucket.
  OffloadParam offload_masters = {};
  LowPrecisionPolicy low_precision_policy = {};
  /// 16-bit communication dtypes of gradients and sharded parameters. These parameters have
  /// separate buckets. Not together with ZeRO++ quantization.
  flat::CommDtypes narrow = {};
  bool narrow_gradients_only = false;  ///< Parameters are sent in full width.
};

/// ZeRO stages 1 to 3: each rank owns an equal shard of every bucket of parameters, keeps the
/// gradients and the optimizer state of that shard only, and updates it; then all ranks gather the
/// result. In stage 3 they gather it when an operation uses a parameter, including frozen ones; see
/// ParamCoordinator.
///
/// Buckets hold parameters of one optimizer group, in reverse order of registration. A full bucket
/// is reduce-scattered while backward still runs, in index order on every rank. Parameters without
/// a gradient on this rank count as zero; without a gradient on any rank they get none and are not
/// updated, as in data parallel. The model's own gradients are undefined after a backward that
/// averages. Without averaging (`set_sync`) full gradients stay on this rank, and are averaged with
/// the next ones: the same numbers as data parallel's. With averaging in every micro-step, averages
/// accumulate in the shard.
///
/// Each rank sends (N-1)/N * (gradient + parameter) bytes a step, as an all-reduce does, and a byte
/// a parameter; in stage 3 parameters are gathered twice, for forward and for backward. With ZeRO++
/// (PlusPlusOptions) parameters and gradients are rounded for communication, or gathered from
/// nearby ranks; updates and checkpoints are exact.
///
/// fp16 and bf16 parameters are updated in fp32: this rank's shard has fp32 masters and fp32
/// gradients, and after an update the parameters are the rounded masters. A different value that a
/// program writes to a parameter becomes its master at the next update. LowPrecisionPolicy can
/// change this.
///
/// fp32 parameters may use 16-bit communication (ShardingOptions::narrow): gradients are rounded,
/// summed in fp32 and rounded again, and sharded parameters are computed with as rounded on all
/// ranks; updates and checkpoints are exact.
///
/// Memory: full parameters, or in stage 3 1/N (on the host or in files, if offloaded) and the
/// unsharded units; 1/N of gradients, state and masters, and during backward up to three buckets in
/// reduction.
///
/// Not thread-safe; one backward at a time. After: Rajbhandari et al., "ZeRO", SC 2020, with every
/// bucket sharded evenly instead of the whole model.
class Sharding final : public GradientSync, public std::enable_shared_from_this<Sharding> {
 public:
  /// `groups`: parameters with the same optimizer options. ConfigError if a trainable parameter is
  /// in no group, if ranks' models differ, or if two tensors share memory, which sharding would
  /// separate; one tensor with two names is accepted. All ranks get rank 0's values. Collective.
  Sharding(
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const std::vector<std::vector<at::Tensor>>& groups,
      Group group,
      const ShardingOptions& options);
  /// Installs hooks on the parameters. It is not in the constructor because hooks refer to this
  /// weakly.
  void watch();

  void begin_backward() override;
  void finish_backward() override;
  void abandon_backward() noexcept override;
  void set_sync(bool sync) override { sync_ = sync; }
  void check_alive() const override {
    group_.check_alive();
    reduce_group_.check_alive();
    comm_.plus_plus.check_alive();
  }

  /// Callbacks of speculative updates, which act on copies while backward still runs.
  struct SpeculativeUpdates {
    /// Returns whether an update follows the running backward. Autograd's threads call this and the
    /// functions below.
    std::function<bool()> due;
    /// The slices of shard `index` of a group will have `gradient`, with the shard's layout, unless
    /// something changes it.
    std::function<void(size_t group, size_t index, const at::Tensor& gradient)> begin;
    /// Called before that gradient, or one of its parameters, is written to.
    std::function<void(size_t group, size_t index)> forget;
  };
  void set_speculative_updates(SpeculativeUpdates early) {
    early_ = std::move(early);
    note_finished();
  }

  /// The shards to update in place of the parameters: for each optimizer group, flat, with the
  /// shard slices of parameters in each.
  struct Shard {
    at::Tensor values;
    std::vector<at::Tensor> shard_slices;
    std::shared_ptr<offload::FileTensor> file;  ///< The file that stores the values, if any.
    /// All parameters of which any rank has slices, in order.
    std::vector<flat::ShardBounds> wholes;
  };
  const std::vector<std::vector<Shard>>& shards() const { return shards_; }
  /// ConfigError for a parameter that would not be updated: a trained one with new memory since it
  /// was sharded, and one that was frozen then, and requires gradients now. Local.
  void check_in_place() const;
  /// Prepares the shards for an update: values written to parameters are copied to them. Unsharded
  /// units are freed, after all ranks have arrived. In stage 3 collective; throws CommError.
  void finish_parameter_use();
  /// Prepares the shards for reading: the same, but unsharded units stay.
  void write_back();
  /// Publishes an update of the shards: all ranks get all values, now or when they use them.
  /// Collective. Throws CommError.
  void gather_parameters();
  /// Manages `part`, a tensor outside the model, from now on; `name` is for errors. Only in stage
  /// 3, on all ranks in the same order.
  void look_after(std::unique_ptr<ShardedUnit> part, std::string name);
  /// Unshards parameters in stage 3; null in other stages.
  ParamCoordinator* coordinator() { return coordinator_.get(); }

  /// All trained parameters.
  std::vector<at::Tensor> parameters() const { return tensors_of(parameters_); }
  /// Returns this rank's shard slices of `parameters`; for an unknown parameter, itself.
  std::vector<at::Tensor> slices_of(const std::vector<at::Tensor>& parameters) const;
  /// Returns this rank's part of a sharded parameter for saving: its slices, or, if stored in 8
  /// bits, copies.
  std::vector<ShardSlice> saved_slices(const at::Tensor& parameter) const;
  /// Returns whether its slices are copies, which `pack` stores after a write. On all ranks,
  /// between exchanges.
  bool is_kept_in_8_bits(const at::Tensor& parameter) const;
  void pack(const std::vector<ShardSlice>& copies);
  /// Returns the shard slice with these values; null if there is none.
  const ShardSlice* slice_with(const at::Tensor& values) const;
  /// Returns whether the slices of a replicated parameter are its fp32 masters.
  bool has_masters_of(const at::Tensor& parameter) const;
  /// Returns whether any trained parameter has fp32 masters.
  bool has_masters() const;
  /// Returns this rank's slices, by their values.
  const std::map<const at::TensorImpl*, ShardSlice>& shard_slices() const { return slice_with_; }
  /// Drops the shards' gradients, and those left on this rank by backwards without averaging.
  void drop_gradients();
  /// Marks the shards' gradients as used by a step. Until they change, the next backward that
  /// averages is a ConfigError on all ranks: it would add to them, and a module's zero_grad drops
  /// only the parameters' own gradients. Call it on all ranks.
  void mark_gradients_used();
  /// Gradients that backwards without averaging have left on this rank apart from the parameters:
  /// sums in fp32.
  std::vector<at::Tensor> held_gradients() const;
  /// Returns the names of trained parameters without a gradient on any rank in the averages since
  /// gradients were dropped. The same on all ranks; local.
  std::vector<std::string> without_gradient() const;
  /// Returns the memory that this rank keeps: replicated or sharded parameters (and rounded
  /// masters), masters, the shards' gradients. Not files. For a caller that moves it, between
  /// backward and step.
  struct Memory {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> gradients;
  };
  Memory memory() const;
  /// Computes the norm over all ranks' slices. On the parameters' device, in fp64 if any rank's
  /// are, else in fp32, even if this rank has no gradient. Collective.
  at::Tensor norm_over_ranks(const at::Tensor& own, double norm_type);

  const Group& group() const { return group_; }

 private:
  void gradient_arrived(size_t index);
  /// Adds the gradient from autograd to the gradient that this rank holds for the parameter.
  void hold(size_t index);
  void start(size_t bucket);
  void finish_locked();
  void reset_backward();
  Pending start_presence();
  /// Whether a step has used a gradient of this rank.
  bool adds_to_used() const;
  void make_room(
      std::optional<ShardPlaces>& places,
      const OffloadParam& options,
      const NamedTensors& parameters,
      bool copies_stay);
  /// Creates buckets of `items`, which belong to the newest group.
  void lay_out(const NamedTensors& items, const ShardingOptions& options, ParamPlacement placement);
  void page_frozen(const NamedTensors& frozen, const ShardingOptions& options);
  std::vector<flat::BucketPlan> plan(
      const std::vector<at::Tensor>& tensors,
      const ShardingOptions& options,
      int64_t first_cap_bytes) const;
  /// `masters`: whether they are stored with those of replicated parameters.
  ShardPlaces* places(ParamPlacement placement, bool masters = false) {
    std::optional<ShardPlaces>& places =
        placement == ParamPlacement::kSharded && !masters ? places_ : master_places_;
    return places ? &*places : nullptr;
  }
  void note_slices(const ShardedBucket& bucket);
  /// Handles the reduced bucket `index`; only the first call has an effect.
  void begin_speculative(size_t index);
  /// For all, or only for buckets whose parameters were written to.
  void discard_speculative(bool only_if_written);
  void discard_speculative(size_t index);
  /// A counter that every write to a bucket's parameters increments.
  int64_t version_of(size_t index) const;
  void note_finished();
  void write_back_masters();

  Group group_;
  /// The group for gradients: in stage 3 separate from that of parameters, which are gathered in
  /// the order of operations.
  Group reduce_group_;
  std::map<const at::TensorImpl*, size_t> unit_of_;
  BucketComm comm_;  ///< Of sharded, trained parameters.
  LowPrecisionPolicy low_precision_policy_;
  NamedTensors parameters_;
  NamedTensors untrained_;  ///< Frozen at construction.
  std::vector<at::Tensor> buffers_;
  std::vector<std::unique_ptr<ShardedBucket>> buckets_;
  std::vector<std::unique_ptr<ShardedBucket>> frozen_;
  std::vector<std::unique_ptr<ShardedUnit>> others_;
  std::optional<ShardPlaces> places_;         ///< If sharded.
  std::optional<ShardPlaces> master_places_;  ///< If masters are stored there.
  std::unique_ptr<ParamCoordinator> coordinator_;
  std::vector<std::vector<size_t>> members_;  ///< [bucket][entry] Index of the parameter.
  std::vector<size_t> bucket_of_;             ///< [parameter]
  std::vector<std::vector<Shard>> shards_;
  std::vector<std::pair<size_t, size_t>> shard_of_;  ///< [bucket] Group, and index in it.
  SpeculativeUpdates early_;
  std::vector<std::optional<int64_t>> speculative_begun_;  ///< [bucket] Its version at that time.
  /// [bucket] Its version when shard and parameters last agreed.
  std::vector<int64_t> settled_;
  std::map<const at::TensorImpl*, ShardSlice> slice_with_;
  std::map<const at::TensorImpl*, std::vector<at::Tensor>> slices_of_;
  std::set<const at::TensorImpl*> mastered_;  ///< Replicated parameters with masters.
  std::map<const at::TensorImpl*, ShardedBucket*> in_8_bits_;
  std::unique_ptr<BackwardHooks> hooks_;

  std::mutex mutex_;  // Gradients of GPUs arrive on autograd's own threads.
  bool sync_ = true;
  bool begun_ = false;
  bool expected_ = false;
  bool in_backward_ = false;
  std::vector<bool> present_;  ///< [parameter] This rank has a gradient, in this backward or held.
  std::vector<bool> arrived_;  ///< [parameter] In this backward.
  std::vector<at::Tensor> held_;  ///< [parameter] fp32 sum of earlier backwards; undefined if none.
  std::vector<size_t> missing_;   ///< [bucket] Parameters that have not arrived.
  std::vector<bool> had_gradient_;  ///< [parameter] On any rank, since gradients were dropped.
  /// Gradient of a slice, and its version, when a step used it.
  struct Used {
    at::Tensor shard_slice;
    const at::TensorImpl* gradient = nullptr;
    int64_t version = 0;
  };
  std::vector<Used> used_;
  bool adds_to_used_ = false;  ///< The running backward adds to used gradients, on this rank.
  size_t next_bucket_ = 0;
  int64_t backwards_ = 0;  ///< Backwards that reduced a bucket, successful or not.
};

}  // namespace lockstep::zero
