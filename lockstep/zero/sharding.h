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
#include "lockstep/zero/speculative_trigger.h"

namespace lockstep::zero {

/// Implements ZeRO stages 1 to 3 for one model: each rank owns an equal shard of every bucket of
/// parameters, and updates it.
///
/// A rank keeps only the gradients and the optimizer state of its shards. All ranks gather the
/// parameters after an update. In stage 3 they gather a parameter, frozen ones included, when an
/// operation uses it; see ParamCoordinator.
///
/// Each bucket holds parameters of one optimizer group, in reverse order of registration. A full
/// bucket is reduce-scattered while backward still runs, in index order on every rank. A parameter
/// without a gradient on this rank counts as zero. A parameter that has a gradient on no rank gets
/// none and is not updated, as in data parallel. `grad` of the model's parameters is a
/// GradientPlaceholder after a backward that averages: it can be dropped, not read. Without
/// averaging (`set_sync`) full gradients stay on this rank and are not averaged. The next averaging
/// includes them, with data parallel's result. With averaging in every micro-step, averages
/// accumulate in the shard.
///
/// Each rank sends (N-1)/N * (gradient + parameter) bytes per step, as an all-reduce does, plus one
/// byte per parameter. Stage 3 gathers parameters twice, for forward and for backward. ZeRO++
/// (PlusPlusOptions) rounds parameters and gradients for communication, or gathers parameters from
/// the ranks of the hpZ group. Its updates and checkpoints are exact.
///
/// fp16 and bf16 parameters are updated in fp32. This rank's shard has fp32 masters and fp32
/// gradients, and an update sets the parameters to the rounded masters. If the program writes
/// another value to a parameter, the next update uses it as the master. LowPrecisionPolicy can
/// change this.
///
/// fp32 parameters may use 16-bit communication (ShardingOptions::comm_dtypes). Their gradients are
/// rounded, summed in fp32 and rounded again. In stage 3 all ranks compute with the rounded
/// parameters. Updates and checkpoints are exact.
///
/// Memory: full parameters; in stage 3 1/N of them (on the host or in files, if offloaded) and the
/// unsharded units. Also 1/N of gradients, state and masters, and up to three buckets during
/// backward.
///
/// Not thread-safe; one backward at a time. Modelled on Rajbhandari et al., "ZeRO", SC 2020, with
/// every bucket sharded evenly instead of the full model.
class Sharding final : public GradientSync, public std::enable_shared_from_this<Sharding> {
 public:
  /// Shards the model; all ranks get rank 0's values. `groups`: parameters with the same optimizer
  /// options. Throws ConfigError if a trainable parameter is in no group, if ranks' models differ,
  /// or if two tensors share memory, which sharding would separate. One tensor with two names is
  /// accepted. Collective.
  Sharding(
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const std::vector<std::vector<at::Tensor>>& groups,
      Group group,
      const ShardingOptions& options);
  /// Installs hooks on the parameters. The constructor cannot, since hooks refer to this weakly.
  void watch() { reducer_.watch(shared_from_this()); }

  void begin_backward() override { reducer_.reduction().begin(); }
  void finish_backward() override { reducer_.reduction().finish(); }
  void abandon_backward() noexcept override { reducer_.reduction().abandon(); }
  void set_sync(bool sync) override { reducer_.reduction().set_sync(sync); }
  void set_facts(RankFacts facts) override { reducer_.set_facts(std::move(facts)); }
  bool has_gradients() const override { return reducer_.has_gradients(); }
  void check_alive() const override { model_.check_alive(); }
  void set_speculative_updates(SpeculativeCallbacks callbacks) {
    speculative_.set_callbacks(std::move(callbacks));
  }

  /// The shards to update in place of the parameters, for each optimizer group.
  const std::vector<std::vector<Shard>>& shards() const { return model_.shards(); }
  /// Throws ConfigError for a parameter that would not be updated: its memory was replaced
  /// (set_data, Module::to), or it was frozen when it was sharded and requires gradients now.
  /// Local.
  void check_not_moved() const { model_.check_not_moved(); }
  /// Copies values that the program wrote to parameters into the shards, before an update. Frees
  /// unsharded units after all ranks have called it. Collective in stage 3. Throws CommError.
  void finish_parameter_use();
  /// Does the same before the shards are read, but keeps unsharded units.
  void write_back();
  /// Gathers the updated shards: all ranks get all values now, or in stage 3 when they use them.
  /// Collective. Throws CommError.
  void gather_parameters();
  /// Adds a unit of a tensor that is not part of the model; `name` is for errors. Only in stage 3,
  /// on all ranks in the same order.
  void manage(std::unique_ptr<ShardedUnit> unit, std::string name) {
    model_.manage(std::move(unit), std::move(name));
  }
  /// Unshards parameters in stage 3; null in other stages.
  ParamCoordinator* coordinator() { return model_.coordinator(); }

  /// All trained parameters.
  std::vector<at::Tensor> parameters() const { return tensors_of(model_.parameters()); }
  /// This rank's shard slices.
  const ShardSlices& slices() const { return model_.slices(); }
  /// Quantizes `copies` (of ShardSlices::saved) to 8 bits and stores them. Call it on all ranks,
  /// not during an exchange (see ParamCoordinator).
  void store_quantized(const std::vector<ShardSlice>& copies);
  /// Returns whether any trained parameter has fp32 masters.
  bool has_masters() const { return model_.has_masters(); }
  /// See ShardReducer::apply_drops.
  void apply_drops() { reducer_.apply_drops(); }
  /// Drops the shards' gradients, and those of backward passes without averaging.
  void drop_gradients() { reducer_.drop_gradients(); }
  /// Marks the shards' gradients as used by a step. Until they change, the next averaging backward
  /// throws ConfigError on all ranks: it would add to them. Call it on all ranks.
  void mark_gradients_used() { reducer_.mark_gradients_used(); }
  /// Returns the fp32 sums of gradients of backward passes without averaging on this rank.
  std::vector<at::Tensor> held_gradients() const { return reducer_.held_gradients(); }
  /// Returns the names of trained parameters that have had a gradient on no rank since gradients
  /// were dropped. Equal on all ranks. Local.
  std::vector<std::string> without_gradient() const { return reducer_.without_gradient(); }
  /// The tensors that this rank keeps in memory, not in files.
  struct Memory {
    std::vector<at::Tensor> parameters;  ///< Full values or shards, and rounded masters.
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> gradients;  ///< Of the shards, and those not yet averaged.
  };
  /// Returns the memory for a caller that moves it, between backward and step.
  Memory memory() const;
  /// Computes the norm over all ranks' slices. `own`: this rank's norm, 0-d. The result is on the
  /// parameters' device, in fp64 if any parameter is, else in fp32. Collective.
  at::Tensor norm_over_ranks(const at::Tensor& own, double norm_type);

  const Group& group() const { return group_; }

 private:
  void write_back_masters();

  Group group_;
  ShardedModel model_;
  SpeculativeTrigger speculative_;
  ShardReducer reducer_;
};

}  // namespace lockstep::zero
