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
#include "lockstep/comm/named_tensor.h"
#include "lockstep/sync/backward_hooks.h"
#include "lockstep/sync/gradient_sync.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/quantize/plus_plus.h"
#include "lockstep/zero/sharded_bucket.h"

namespace lockstep::zero {

struct ShardingOptions {
  /// Largest bucket. Smaller: less memory for gradients under way, more messages.
  int64_t cap_bytes = int64_t{25} << 20;
  /// Largest first bucket, small so that the first message leaves early.
  int64_t first_cap_bytes = int64_t{1} << 20;
  bool broadcast_buffers = true;
  /// Parameters that lie in one bucket, with no others, whatever its size. Of one optimizer group;
  /// where a unit has several, it has a bucket for each.
  std::vector<std::vector<at::Tensor>> units = {};
  /// kSharded is stage 3: all ranks have whole parameters only while operations touch them.
  ParamPlacement placement = ParamPlacement::kReplicated;
  /// Paged parameters of up to so many elements are kept all the same.
  int64_t keep_up_to_elements = 0;
  /// But no more than so many elements in all, in the order of the parameters.
  int64_t keep_in_all = std::numeric_limits<int64_t>::max();
  ParamCoordinatorOptions coordinator = {};
  /// Only of paged parameters.
  PlusPlusOptions plus_plus = {};
  /// Only of paged parameters: where each rank's part of them lies.
  OffloadParam offload = {};
  /// Where fp32 masters lie, of paged parameters unless `offload` says where their parts do. What
  /// those round to stays with the bucket.
  OffloadParam offload_masters = {};
  LowPrecisionPolicy low_precision_policy = {};
  /// What is rounded to 16 bits on its way: gradients, and parameters that are paged. In buckets of
  /// their own. Not where ZeRO++ rounds either.
  flat::CommDtypes narrow = {};
  bool narrow_gradients_only = false;  ///< Parameters travel as wide as they are all the same.
};

/// ZeRO's stages: each rank owns an equal part of every bucket of parameters, has the gradients and
/// the optimizer state of that part alone, and updates it; then all get the result. In stage 3 they
/// get it when an operation touches a parameter, frozen ones included; see Pager.
///
/// Buckets hold parameters of one optimizer group, in reverse order of registration. A full bucket
/// is reduce-scattered while backward still runs, in index order on every rank; what took no part
/// counts as zero, and what took part on no rank has no gradient, so it is left alone as in data
/// parallel. The model's own gradients are undefined after a backward that averages. Without
/// averaging (`set_sync`) they stay whole on this rank, and are averaged with the next ones: the
/// same numbers as data parallel's. With averaging in every micro-step, averages are added up in
/// the shard.
///
/// Sends a step and rank (N-1)/N * (gradient + parameter) bytes, as an all-reduce does, and a byte
/// a parameter; in stage 3 parameters come twice, for forward and for backward. With ZeRO++
/// (PlusPlusOptions) they, and gradients, are rounded on their way, or come from close ranks; what
/// is kept whole, and what is updated and saved, is exact.
///
/// Parameters of fp16 and bf16 are updated in fp32: this rank's part has masters, a second copy,
/// with fp32 gradients, and after an update the parameters are what these round to. What a program
/// writes to a parameter, and is not that already, is its master's value from the next update on.
/// LowPrecisionPolicy can say otherwise.
///
/// Parameters of fp32 may travel in 16 bits (ShardingOptions::narrow): gradients are rounded, added
/// up in fp32 and rounded again, and paged parameters are what they round to on all ranks; what is
/// updated and saved is exact.
///
/// Memory: parameters whole, or in stage 3 1/N (on the host or in files, if offloaded) and the
/// units in use; of gradients, state and masters 1/N, and while backward runs up to three buckets
/// that are under way.
///
/// Thread safety: none; one backward at a time. After: Rajbhandari et al., "ZeRO", SC 2020, with
/// every bucket cut evenly instead of the whole model.
class Sharding final : public GradientSync, public std::enable_shared_from_this<Sharding> {
 public:
  /// `groups`: parameters that the same options update. ConfigError unless each trainable parameter
  /// is in one of them, or if ranks' models differ, or two tensors have memory in common, which
  /// dividing would end; one tensor by two names is fine. All get rank 0's values. Collective.
  Sharding(
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const std::vector<std::vector<at::Tensor>>& groups,
      Group group,
      const ShardingOptions& options);
  /// Hooks the parameters; apart from construction because hooks refer to this weakly.
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

  /// Who begins to update shards while backward still runs, on copies.
  struct SpeculativeUpdates {
    /// Whether an update follows the backward under way. Called by the threads of autograd, as is
    /// what follows.
    std::function<bool()> due;
    /// The pieces of shard `index` of a group will have `gradient`, if nothing more is done to it:
    /// it lies as the shard does.
    std::function<void(size_t group, size_t index, const at::Tensor& gradient)> begin;
    /// Before that gradient is written to, or where its parameters were.
    std::function<void(size_t group, size_t index)> forget;
  };
  void set_speculative_updates(SpeculativeUpdates early) {
    early_ = std::move(early);
    note_finished();
  }

  /// The shards to update in place of the parameters: of each optimizer group, flat, with the
  /// pieces of parameters that lie in each.
  struct Shard {
    at::Tensor values;
    std::vector<at::Tensor> shard_slices;
    std::shared_ptr<offload::FileTensor> file;  ///< Where the values lie in one.
    std::vector<flat::ShardBounds> wholes;      ///< Of all that any rank has pieces of, in order.
  };
  const std::vector<std::vector<Shard>>& shards() const { return shards_; }
  /// ConfigError for a parameter that would not be updated: a trained one that has got other memory
  /// since it was divided, and one that was frozen then, and requires gradients now. Local.
  void check_in_place() const;
  /// Before the shards are updated: they have what was written to parameters. Whole parameters that
  /// come when they are touched go, once all ranks are here. In stage 3 collective; throws
  /// CommError.
  void finish_parameter_use();
  /// Before the shards are read: the same, but what is whole stays.
  void write_back();
  /// After an update of the shards: all ranks have all values, or will when they touch them.
  /// Collective. Throws CommError.
  void gather_parameters();
  /// From now on brings `part`, too, which is none of the model's: `name` is what it is called.
  /// Only in stage 3, on all ranks in the same order.
  void look_after(std::unique_ptr<ShardedUnit> part, std::string name);
  /// Who brings parameters in stage 3; null in others.
  ParamCoordinator* coordinator() { return coordinator_.get(); }

  /// All that are trained.
  std::vector<at::Tensor> parameters() const { return tensors_of(parameters_); }
  /// What this rank owns of `parameters`; of one that is not ours, itself.
  std::vector<at::Tensor> slices_of(const std::vector<at::Tensor>& parameters) const;
  /// What this rank has of a parameter whose values it owns parts of, as it is saved: its pieces,
  /// or, where it is kept in 8 bits, copies.
  std::vector<ShardSlice> saved_slices(const at::Tensor& parameter) const;
  /// Whether its pieces are copies, which `pack` takes back once they have been written to. On all
  /// ranks, between rounds.
  bool is_kept_in_8_bits(const at::Tensor& parameter) const;
  void pack(const std::vector<ShardSlice>& copies);
  /// The piece whose values these are; null for a tensor that is none.
  const ShardSlice* slice_with(const at::Tensor& values) const;
  /// Whether the pieces of a parameter that all ranks have whole are fp32 masters of it.
  bool has_masters_of(const at::Tensor& parameter) const;
  /// Whether any trained parameter has fp32 masters, kept or paged.
  bool has_masters() const;
  /// This rank's, by their values.
  const std::map<const at::TensorImpl*, ShardSlice>& shard_slices() const { return slice_with_; }
  /// Those of the shards, and what backward without averaging has left on this rank.
  void drop_gradients();
  /// A step has used the shards' gradients. While they are there as they are now, the next backward
  /// that averages is a ConfigError on all ranks: it would add to them, and dropping the
  /// parameters' own, as a module's zero_grad does, drops none of a shard. To be called on all
  /// ranks.
  void mark_gradients_used();
  /// What backward without averaging has left of this rank's gradients apart from the parameters:
  /// sums in fp32.
  std::vector<at::Tensor> held_gradients() const;
  /// Names of the trained parameters of which no rank had a gradient in what was averaged since
  /// gradients were dropped. The same on all ranks; local.
  std::vector<std::string> without_gradient() const;
  /// Memory of what this rank keeps: parameters that are kept or paged (and what masters that lie
  /// elsewhere round to), masters, the shards' gradients. Not what lies in files. For who moves it
  /// elsewhere, between backward and step.
  struct Memory {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> gradients;
  };
  Memory memory() const;
  /// The norm over all ranks' pieces, of this rank's. On the parameters' device, and in fp64 if any
  /// of them is, else in fp32, whatever this rank's is, which may have no gradient. Collective.
  at::Tensor norm_over_ranks(const at::Tensor& own, double norm_type);

  const Group& group() const { return group_; }

 private:
  void gradient_arrived(size_t index);
  /// Adds the gradient that autograd has given a parameter to what this rank holds of it.
  void hold(size_t index);
  void start(size_t bucket);
  void finish_locked();
  void reset_backward();
  Pending start_presence();
  /// Whether a gradient here is what a step has used.
  bool adds_to_used() const;
  void make_room(
      std::optional<ShardPlaces>& places,
      const OffloadParam& options,
      const NamedTensors& parameters,
      bool copies_stay);
  /// Buckets of `items`, which belong to the newest group.
  void lay_out(const NamedTensors& items, const ShardingOptions& options, ParamPlacement placement);
  void page_frozen(const NamedTensors& frozen, const ShardingOptions& options);
  std::vector<flat::BucketPlan> plan(
      const std::vector<at::Tensor>& tensors,
      const ShardingOptions& options,
      int64_t first_cap_bytes) const;
  /// `masters`: whether they are to lie with those of what is kept.
  ShardPlaces* places(ParamPlacement placement, bool masters = false) {
    std::optional<ShardPlaces>& places =
        placement == ParamPlacement::kSharded && !masters ? places_ : master_places_;
    return places ? &*places : nullptr;
  }
  void note_slices(const ShardedBucket& bucket);
  /// Once bucket `index` is reduced; nothing but the first time.
  void begin_speculative(size_t index);
  /// Of all, or of those alone whose parameters were written to.
  void discard_speculative(bool only_if_written);
  void discard_speculative(size_t index);
  /// That goes up with every write to one of a bucket's parameters.
  int64_t version_of(size_t index) const;
  void note_finished();
  void write_back_masters();

  Group group_;
  /// Where gradients travel: in stage 3 apart from parameters, which come in the order of the
  /// operations.
  Group reduce_group_;
  std::map<const at::TensorImpl*, size_t> unit_of_;
  BucketComm comm_;  ///< Of what is paged and trained.
  LowPrecisionPolicy low_precision_policy_;
  NamedTensors parameters_;
  NamedTensors untrained_;  ///< Frozen when all was divided.
  std::vector<at::Tensor> buffers_;
  std::vector<std::unique_ptr<ShardedBucket>> buckets_;
  std::vector<std::unique_ptr<ShardedBucket>> frozen_;
  std::vector<std::unique_ptr<ShardedUnit>> others_;
  std::optional<ShardPlaces> places_;         ///< If paged.
  std::optional<ShardPlaces> master_places_;  ///< If any masters lie there.
  std::unique_ptr<ParamCoordinator> coordinator_;
  std::vector<std::vector<size_t>> members_;  ///< [bucket][slot] Which parameter lies there.
  std::vector<size_t> bucket_of_;             ///< [parameter]
  std::vector<std::vector<Shard>> shards_;
  std::vector<std::pair<size_t, size_t>> shard_of_;  ///< [bucket] Group and index there.
  SpeculativeUpdates early_;
  std::vector<std::optional<int64_t>> speculative_begun_;  ///< [bucket] Its version then.
  /// [bucket] Its version when its shard last was what its parameters are.
  std::vector<int64_t> settled_;
  std::map<const at::TensorImpl*, ShardSlice> slice_with_;
  std::map<const at::TensorImpl*, std::vector<at::Tensor>> slices_of_;
  std::set<const at::TensorImpl*> mastered_;  ///< Kept parameters.
  std::map<const at::TensorImpl*, ShardedBucket*> in_8_bits_;
  std::unique_ptr<BackwardHooks> hooks_;

  std::mutex mutex_;  // Gradients of GPUs arrive on autograd's own threads.
  bool sync_ = true;
  bool begun_ = false;
  bool expected_ = false;
  bool in_backward_ = false;
  std::vector<bool> present_;  ///< [parameter] This rank has a gradient, in this backward or kept.
  std::vector<bool> arrived_;  ///< [parameter] In this backward.
  std::vector<at::Tensor> held_;    ///< [parameter] In fp32, of earlier ones; undefined if none.
  std::vector<size_t> missing_;     ///< [bucket] Parameters that have not arrived.
  std::vector<bool> had_gradient_;  ///< [parameter] On any rank, since gradients were dropped.
  /// Gradient of a piece, and its version, when a step had used it.
  struct Used {
    at::Tensor shard_slice;
    const at::TensorImpl* gradient = nullptr;
    int64_t version = 0;
  };
  std::vector<Used> used_;
  bool adds_to_used_ = false;  ///< The backward under way, on this rank.
  size_t next_bucket_ = 0;
  int64_t backwards_ = 0;  ///< Those that reduced something, ended well or not.
};

}  // namespace lockstep::zero
