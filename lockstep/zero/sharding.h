// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/sync/gradient_sync.h"
#include "lockstep/zero/shard_reducer.h"
#include "lockstep/zero/shard_slices.h"
#include "lockstep/zero/sharded_model.h"
#include "lockstep/zero/sharding_options.h"
#include "lockstep/zero/speculative_updates.h"

namespace lockstep::zero {

/// ZeRO stages 1 to 3: each rank owns an equal shard of every bucket of parameters, and updates it.
///
/// A rank keeps the gradients and the optimizer state of its shards only. After an update all ranks
/// gather the result, or, in stage 3, when an operation uses a parameter, including frozen ones;
/// see ParamCoordinator.
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
/// fp32 parameters may use 16-bit communication (ShardingOptions::comm_dtypes): gradients are
/// rounded, summed in fp32 and rounded again, and sharded parameters are computed with as rounded
/// on all ranks; updates and checkpoints are exact.
///
/// Memory: full parameters, or in stage 3 1/N (on the host or in files, if offloaded) and the
/// unsharded units; 1/N of gradients, state and masters, and during backward up to three buckets in
/// reduction.
///
/// Not thread-safe; one backward at a time. After: Rajbhandari et al., "ZeRO", SC 2020, with every
/// bucket sharded evenly instead of the whole model.
class Sharding final : public GradientSync, public std::enable_shared_from_this<Sharding> {
 public:
  /// `groups`: parameters with the same optimizer options. Throws ConfigError if a trainable
  /// parameter is in no group, if ranks' models differ, or if two tensors share memory, which
  /// sharding would separate; one tensor with two names is accepted. All ranks get rank 0's values.
  /// Collective.
  Sharding(
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const std::vector<std::vector<at::Tensor>>& groups,
      Group group,
      const ShardingOptions& options);
  /// Installs hooks on the parameters. It is not in the constructor because hooks refer to this
  /// weakly.
  void watch() { reducer_.watch(shared_from_this()); }

  void begin_backward() override { reducer_.reduction().begin(); }
  void finish_backward() override { reducer_.reduction().finish(); }
  void abandon_backward() noexcept override { reducer_.reduction().abandon(); }
  void set_sync(bool sync) override { reducer_.reduction().set_sync(sync); }
  void check_alive() const override { model_.check_alive(); }
  void set_speculative_updates(SpeculativeCallbacks callbacks) {
    speculative_.set_callbacks(std::move(callbacks));
  }

  /// The shards to update in place of the parameters, for each optimizer group.
  const std::vector<std::vector<Shard>>& shards() const { return model_.shards(); }
  /// Throws ConfigError for a parameter that would not be updated: a trained one with new memory
  /// since it was sharded, and one that was frozen then, and requires gradients now. Local.
  void check_in_place() const { model_.check_in_place(); }
  /// Prepares the shards for an update: values written to parameters are copied to them. Unsharded
  /// units are freed, after all ranks have arrived. In stage 3 collective; throws CommError.
  void finish_parameter_use();
  /// Prepares the shards for reading: the same, but unsharded units stay.
  void write_back();
  /// Publishes an update of the shards: all ranks get all values, now or when they use them.
  /// Collective. Throws CommError.
  void gather_parameters();
  /// Manages `unit`, a tensor outside the model, from now on; `name` is for errors. Only in stage
  /// 3, on all ranks in the same order.
  void manage(std::unique_ptr<ShardedUnit> unit, std::string name) {
    model_.manage(std::move(unit), std::move(name));
  }
  /// Unshards parameters in stage 3; null in other stages.
  ParamCoordinator* coordinator() { return model_.coordinator(); }

  /// All trained parameters.
  std::vector<at::Tensor> parameters() const { return tensors_of(model_.parameters()); }
  /// This rank's shard slices.
  const ShardSlices& slices() const { return model_.slices(); }
  /// Stores copies from ShardSlices::saved of parameters in 8 bits. On all ranks, between
  /// exchanges.
  void pack(const std::vector<ShardSlice>& copies);
  /// Returns whether any trained parameter has fp32 masters.
  bool has_masters() const { return model_.has_masters(); }
  /// Drops the shards' gradients, and those left on this rank by backwards without averaging.
  void drop_gradients() { reducer_.drop_gradients(); }
  /// Marks the shards' gradients as used by a step. Until they change, the next backward that
  /// averages is a ConfigError on all ranks: it would add to them, and a module's zero_grad drops
  /// only the parameters' own gradients. Call it on all ranks.
  void mark_gradients_used() { reducer_.mark_gradients_used(); }
  /// Returns the gradients that backwards without averaging have left on this rank apart from the
  /// parameters: sums in fp32.
  std::vector<at::Tensor> held_gradients() const { return reducer_.held_gradients(); }
  /// Returns the names of trained parameters without a gradient on any rank in the averages since
  /// gradients were dropped. The same on all ranks; local.
  std::vector<std::string> without_gradient() const { return reducer_.without_gradient(); }
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
  void write_back_masters();

  Group group_;
  ShardedModel model_;
  SpeculativeUpdates speculative_;
  ShardReducer reducer_;
};

}  // namespace lockstep::zero
