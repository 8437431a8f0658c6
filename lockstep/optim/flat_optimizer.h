// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/shard_bounds.h"
#include "lockstep/offload/options.h"
#include "lockstep/optim/flat/capturable.h"
#include "lockstep/optim/flat/flat_group.h"
#include "lockstep/optim/flat/rule.h"
#include "lockstep/optim/offload/speculative_step.h"

namespace lockstep::optim {

class UpdateBatches;
class HostUpdate;
struct ShardedBatch;

/// What every optimizer of this folder has in common: a torch::optim::Optimizer, so schedulers,
/// `Accelerator::prepare` and everything else that takes one takes these.
///
/// - Parameters and state lie in flat buffers (see FlatGroup). `step` joins neighbours whose
///   gradients and state are neighbours too, as in DataParallel's buckets, and updates them as one
///   tensor; all others are updated by the same calls as a list. In fp32 and fp64 the result is the
///   same to the bit, so replicas stay equal whatever each of them could join. In half precision it
///   is not: on the CPU, libtorch rounds the last elements of a tensor otherwise than the rest.
/// - A parameter without gradient is skipped, and does not count the step, as in torch. One that
///   comes twice in a group is updated once; one in two groups is a ConfigError.
/// - Move the model first (`Module::to`), then construct this, or call `follow_parameters`, as
///   `Accelerator::prepare` does. Without, a parameter that is moved later (`set_data`) keeps its
///   state, which follows at its next step, but is not joined any more, and the old buffer keeps
///   its memory. One whose shape changes is a ConfigError at the next step.
/// - State has the parameter's dtype, as in torch.optim, so bf16 parameters have bf16 state; but
/// see
///   `update_shards`. Nothing is kept in `state()`; `optimizer_tensors` (optimizer_state.h) has it
///   by name.
/// - Ranks of one host may share parameters and state (`share`): these exist once then, each rank
///   updates its share of them, and all have the result, without a message. To the bit the same.
/// - `capturable`, as torch.optim's: with parameters on a device, `step` can be captured in a graph
///   (at::accelerator::Graph, at::cuda::CUDAGraph) and replayed. Steps and the learning rate lie on
///   the device, in float32, and `step` reads nothing from there. `set_lr` and schedules write the
///   rate, so replays follow it; every other option is what it was at the capture. Take a step or
///   more before it, for that makes the state; parameters, and gradients, must stay where they
///   were. A capture of a group that is not capturable, or has no state yet, is a ConfigError. The
///   numbers are those without, the rate rounded to float32 (those without a fused kernel form a
///   product with it in another order: a last bit). Nothing is different on the CPU, and an update
///   that is offloaded to it is refused.
/// - `zero_grad` is torch's: it frees gradients, or zeroes them where they lie if passed false.
/// - `Accelerator::prepare` sets a call guard: a direct `step` of a prepared optimizer is a
///   ConfigError.
///
/// Dense real parameters; sparse gradients are a ConfigError. Thread safety: none.
class FlatOptimizer : public torch::optim::Optimizer {
 public:
  /// The state of one parameter.
  struct ParameterState {
    int64_t step = 0;
    std::vector<at::Tensor> fields;   ///< As in `traits().fields`; undefined if it has none.
    std::vector<float> scalars = {};  ///< As in `traits().scalars`.
  };

  /// Calls `closure` with gradients enabled, if there is one; then one update. Returns its loss.
  at::Tensor step(LossClosure closure = nullptr) override;
  /// torch's `zero_grad`, after the call guard.
  void zero_grad(bool set_to_none = true);  // NOLINT(bugprone-derived-method-shadowing-base-method)
  /// Runs `guard` first in every `step` and `zero_grad`, with "step()" or "zero_grad()". A guard
  /// refuses the call by throwing. An empty guard allows every call.
  void set_call_guard(std::function<void(const char* call)> guard);
  /// torch's archives would have no names: ConfigError.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Lays out what has been added to `param_groups()`, as `step` does. ConfigError, if it does not
  /// fit.
  void adopt_parameters();
  /// Where parameters have been moved, to another device say, lays them and their state out anew.
  void follow_parameters();
  /// Parameters and state lie in memory common to the ranks of `group` from now on; see
  /// FlatGroup::share. `step` then is collective, and wants the same gradients on all ranks: each
  /// updates its share, when no rank needs the old values any more, and returns when all have.
  /// Collective.
  void share(const Group& group);
  bool is_shared() const { return sharers_.has_value(); }
  /// One flat buffer, and what of it is to be updated.
  struct BufferSlices {
    at::Tensor buffer;
    std::vector<at::Tensor> tensors;  ///< Views of the buffer, in order; leaves.
    std::shared_ptr<offload::FileTensor> file = nullptr;  ///< Where the buffer lies in one.
    /// What they are slices of, and all that other ranks alone have slices of, in order. The same
    /// on all ranks.
    std::vector<flat::ShardBounds> full_parameters = {};
  };
  /// Updates `pieces`, [group][buffer], from now on in place of its parameters, of which this rank
  /// owns them. Where these lie off the device, or `offload` says so of the state, the host does
  /// the update, bucket by bucket; see HostUpdate. Those of fp16 and bf16 are updated in fp32, and
  /// rounded once; their state has their dtype, or with `fp32_state` is fp32. A rule that needs
  /// parameters whole has `ranks` help each other, which own the rest: `step` then is collective,
  /// and wants gradients of the same parameters on all of them. So it is where any state or
  /// parameters lie in files: a disk that fails on one of `ranks` is a ConfigError on all.
  /// ConfigError for such a rule without ranks or with `offload`, after the first step, and for an
  /// offload that cannot be.
  void update_shards(
      const std::vector<std::vector<BufferSlices>>& pieces,
      const OffloadOptimizer& offload = {},
      const std::optional<Group>& ranks = std::nullopt,
      bool fp32_state = false);
  /// Takes learning rates that were changed to where updates read them, as `step` does.
  void write_rates();
  /// Null if the update is done where the parameters are.
  const HostUpdate* host_update() const { return host_update_.get(); }
  /// Whether updates may begin before `step`: OffloadOptimizer::super_offload.
  bool may_begin_speculatively() const { return early_ != nullptr; }
  /// Expires with this, if they may.
  std::weak_ptr<const void> speculative_alive() const { return early_; }
  /// Begins the update of the pieces in buffer `buffer` of a group, whose gradients are to be what
  /// is in `gradient`, which lies as the buffer does; if it is one that can begin. `step` looks
  /// whether that still is what it is to do. Only where updates may begin early.
  void begin_speculative(size_t group, size_t buffer, const at::Tensor& gradient);
  /// Before such a gradient is written to, or where parameters were.
  void discard_speculative(size_t group, size_t buffer) noexcept;
  /// Updates that `step` found done, for tests and tuning.
  int64_t speculative_count() const;
  /// Makes what the options want of parameters that have other state: for options switched on
  /// since.
  void complete_state();

  const RuleTraits& traits() const { return traits_; }
  /// Pointers into `options`, which must be this optimizer's.
  virtual NamedOptions named_options(torch::optim::OptimizerOptions& options) const = 0;
  /// ConfigError unless `options` are this optimizer's, and possible.
  virtual void check(const torch::optim::OptimizerOptions& options) const = 0;
  /// The shape of `field` for a parameter of `sizes` with `options`. ConfigError for one that the
  /// rule cannot update.
  virtual StateShape shape(
      const torch::optim::OptimizerOptions& options, at::IntArrayRef sizes, size_t field) const = 0;
  /// Whether an update with `options` needs parameters whole.
  virtual bool needs_full(const torch::optim::OptimizerOptions& options) const = 0;
  /// Of the parameter, or of what it is a slice of.
  std::vector<int64_t> whole_sizes(const at::Tensor& parameter) const;

  /// Copies, but for tensors. No fields: it has not been updated yet.
  ParameterState state_of(const at::Tensor& parameter) const;
  /// Copies `state`'s tensors in, cast to the dtype that state has. Undefined fields: none yet. Of
  /// all parameters that are set, with no step or replay between.
  void set_state(const at::Tensor& parameter, const ParameterState& state);

  /// Tensors the last step updated, joined ones counted once: for tests and tuning.
  size_t run_count() const { return run_count_; }

 protected:
  FlatOptimizer(
      RuleTraits traits,
      std::vector<torch::optim::OptimizerParamGroup> groups,
      std::unique_ptr<torch::optim::OptimizerOptions> defaults);

  /// What `field` of state begins at.
  virtual double initial(const torch::optim::OptimizerOptions& options, size_t field) const = 0;
  /// Takes a parameter's `scalars`, empty at first, one step on, to `step`: what the update of that
  /// step is to know of them.
  virtual std::vector<double> advance(
      const torch::optim::OptimizerOptions& options,
      int64_t step,
      std::vector<float>& scalars) const = 0;
  /// The rule: knows nothing but its arguments.
  using UpdateFunction =
      void (*)(const torch::optim::OptimizerOptions& options, const Batch& batch);
  virtual UpdateFunction update_function() const = 0;
  virtual void update_sharded(
      const torch::optim::OptimizerOptions& options, const ShardedBatch& batch) const = 0;

 private:
  /// A parameter that an update needs whole, and ranks have slices of.
  struct FullParameter {
    flat::ShardBounds division;
    at::TensorOptions options;   ///< Of the slices.
    std::optional<size_t> item;  ///< This rank's slice, if it has one.
  };
  struct Place {
    size_t group = 0;
    size_t item = 0;
  };

  /// Steps and rate of a group go where its updates read them. ConfigError while capturing what
  /// cannot be.
  void place_numbers(size_t group);
  void check_sizes(const FlatParameter& item) const;
  /// What there is to update of a group's items `begin` to `end`, its state made.
  UpdateBatches gather(size_t group, size_t begin, size_t end);
  bool group_needs_full(size_t group) const { return needs_full(param_groups_[group].options()); }
  void check_sharded(const OffloadOptimizer& offload, const std::optional<Group>& ranks) const;
  /// ConfigError for what the group's rule cannot update, or not any more.
  void check_added(size_t group, const std::vector<at::Tensor>& added) const;
  void note_wholes(size_t group, const BufferSlices& pieces);
  std::vector<std::vector<bool>> agree_on_gradients();
  void update_wholes(size_t group, const std::vector<bool>& updated);
  void update_slices(size_t group, ShardedBatch batch);
  void append_slice(size_t group, const FullParameter& whole, ShardedBatch& batch);
  void update_by_buckets();
  void update(const torch::optim::OptimizerOptions& options, const Batch& batch) const {
    update_function()(options, batch);
  }
  /// Of a group, those that lie in a buffer: from and to.
  std::pair<size_t, size_t> items_in(size_t group, size_t buffer) const;
  std::optional<SpeculativeStep::Source> speculative_source(
      size_t group, size_t begin, size_t end, const at::Tensor& gradient);
  bool have_gradient(size_t group, size_t begin, size_t end, const at::Tensor& gradient) const;
  bool take_speculative(size_t group, size_t begin, size_t end);
  void offload_state(const OffloadOptimizer& offload);
  [[noreturn]] void refuse_to_capture_offloaded() const;
  void update_share(const torch::optim::OptimizerOptions& options, const Batch& batch);
  void update_slice(const torch::optim::OptimizerOptions& options, const Batch& batch);
  bool create_missing_state(size_t group, FlatParameter& item);
  Place place_of(const at::Tensor& parameter) const;

  RuleTraits traits_;
  std::optional<Group> sharers_;
  std::optional<Group> dividers_;                   ///< Who has the other slices of wholes.
  std::vector<std::vector<FullParameter>> wholes_;  ///< [group] If divided.
  std::vector<FlatGroup> groups_;
  std::vector<std::vector<at::TensorImpl*>> known_;  ///< [group] In the order of its params().
  std::vector<DeviceSteps> device_steps_;            ///< [group]
  std::vector<std::shared_ptr<DeviceRate>> device_rates_;  ///< [group] Null: the host's is read.
  size_t run_count_ = 0;
  std::function<void(const char* call)> call_guard_;
  bool has_slices_ = false;  ///< In place of its parameters.
  std::shared_ptr<HostUpdate> host_update_;
  std::shared_ptr<SpeculativeStep> early_;
};

}  // namespace lockstep::optim
