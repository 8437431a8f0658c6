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

/// The base of every optimizer in this folder: a torch::optim::Optimizer, so schedulers,
/// `Accelerator::prepare` and other users of those accept it.
///
/// - Parameters and state are in flat buffers (see FlatGroup). `step` joins neighbours whose
/// gradients
///   and state are neighbours too, as in DataParallel's buckets, and updates them as one tensor;
///   the rest is updated by the same calls as a list. In fp32 and fp64 the result is bit-exact, so
///   replicas stay equal. In half precision it is not: on the CPU libtorch rounds the last elements
///   of a tensor differently.
/// - A parameter without gradient is skipped, and does not count the step, as in torch. A parameter
///   repeated in a group is updated once; one in two groups is a ConfigError.
/// - Move the model first (`Module::to`), then construct this, or call `follow_parameters`, as
///   `Accelerator::prepare` does. Otherwise a parameter that is moved later (`set_data`) keeps its
///   state, which follows at its next step, but is no longer joined, and the old buffer stays
///   allocated. One whose shape changes is a ConfigError at the next step.
/// - State has the parameter's dtype, as in torch.optim, so bf16 parameters have bf16 state; but
/// see
///   `update_shards`. `state()` is empty; `optimizer_tensors` (optimizer_state.h) returns it by
///   name.
/// - Ranks of one host may share parameters and state (`share`): they exist once, each rank updates
/// its
///   share, and all read the result without a message. Bit-exact.
/// - `capturable`, as torch.optim's: with parameters on a device, `step` can be captured in a graph
///   (at::accelerator::Graph, at::cuda::CUDAGraph) and replayed. Steps and the learning rate are
///   float32 tensors on the device, and `step` reads nothing back. `set_lr` and schedules write the
///   rate, so replays follow it; other options keep their values of the capture. Take a step or
///   more before it, which creates the state; parameters and gradients must keep their memory. A
///   capture of a group that is not capturable, or has no state yet, is a ConfigError. The numbers
///   equal those without, with the rate rounded to float32 (rules without a fused kernel form a
///   product in another order: a last bit). No effect on the CPU; an offloaded update is refused.
/// - `zero_grad` is torch's: it drops gradients, or zeroes them in place if passed false.
/// - `Accelerator::prepare` sets a call guard: a direct `step` of a prepared optimizer is a
///   ConfigError.
///
/// Dense real parameters; sparse gradients are a ConfigError. Not thread-safe.
class FlatOptimizer : public torch::optim::Optimizer {
 public:
  /// The state of one parameter.
  struct ParameterState {
    int64_t step = 0;
    std::vector<at::Tensor> fields;   ///< As in `traits().fields`; undefined if it has none.
    std::vector<float> scalars = {};  ///< As in `traits().scalars`.
  };

  /// Calls `closure`, if any, with gradients enabled, then updates once. Returns its loss.
  at::Tensor step(LossClosure closure = nullptr) override;
  /// Runs the call guard, then torch's `zero_grad`.
  void zero_grad(bool set_to_none = true);  // NOLINT(bugprone-derived-method-shadowing-base-method)
  /// Runs `guard` first in every `step` and `zero_grad`, with "step()" or "zero_grad()". A guard
  /// refuses the call by throwing. An empty guard allows every call.
  void set_call_guard(std::function<void(const char* call)> guard);
  /// Throws ConfigError: torch's archives would have no names.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Lays out parameters added to `param_groups()`, as `step` does. ConfigError for invalid ones.
  void adopt_parameters();
  /// Lays out moved parameters and their state again, for instance on another device.
  void follow_parameters();
  /// Moves parameters and state to memory that the ranks of `group` share; see FlatGroup::share.
  /// `step` then is collective, and needs the same gradients on all ranks: each updates its share,
  /// after no rank needs the old values any more, and returns when all have. Collective.
  void share(const Group& group);
  bool is_shared() const { return sharers_.has_value(); }
  /// One flat buffer, and its updated slices.
  struct BufferSlices {
    at::Tensor buffer;
    std::vector<at::Tensor> tensors;  ///< Views of the buffer, in order; leaves.
    std::shared_ptr<offload::FileTensor> file = nullptr;  ///< The buffer's file, if any.
    /// The bounds of the parameters of these slices, and of those that only other ranks have slices
    /// of, in order. The same on all ranks.
    std::vector<flat::ShardBounds> full_parameters = {};
  };
  /// Updates `pieces`, [group][buffer], from now on in place of its parameters. If these are not on
  /// the device, or `offload` says so of the state, the host does the update, bucket by bucket; see
  /// HostUpdate. fp16 and bf16 slices are updated in fp32, and rounded once; their state has their
  /// dtype, or with `fp32_state` is fp32. For a rule that needs full parameters `ranks` are the
  /// owners of the other slices: `step` then is collective, and needs gradients of the same
  /// parameters on all of them. It is also collective if any state or parameters are in files: a
  /// disk error on one of `ranks` is a ConfigError on all. ConfigError for such a rule without
  /// ranks or with `offload`, after the first step, and for an impossible offload.
  void update_shards(
      const std::vector<std::vector<BufferSlices>>& pieces,
      const OffloadOptimizer& offload = {},
      const std::optional<Group>& ranks = std::nullopt,
      bool fp32_state = false);
  /// Copies changed learning rates to the devices that read them, as `step` does.
  void write_rates();
  /// Null if the update runs on the parameters' device.
  const HostUpdate* host_update() const { return host_update_.get(); }
  /// Whether updates may begin before `step`: OffloadOptimizer::super_offload.
  bool may_begin_speculatively() const { return early_ != nullptr; }
  /// Expires with this, if they may.
  std::weak_ptr<const void> speculative_alive() const { return early_; }
  /// Begins the update of the slices in buffer `buffer` of a group, with the expected `gradient` in
  /// the buffer's layout, if possible. `step` checks whether its inputs are unchanged. Only for
  /// speculative steps.
  void begin_speculative(size_t group, size_t buffer, const at::Tensor& gradient);
  /// Call it before such a gradient, or a parameter, is written to.
  void discard_speculative(size_t group, size_t buffer) noexcept;
  /// Speculative updates that `step` used, for tests and tuning.
  int64_t speculative_count() const;
  /// Creates state that options enabled later need.
  void complete_state();

  const RuleTraits& traits() const { return traits_; }
  /// Pointers into `options`, which must be this optimizer's.
  virtual NamedOptions named_options(torch::optim::OptimizerOptions& options) const = 0;
  /// ConfigError unless `options` are this optimizer's, and valid.
  virtual void check(const torch::optim::OptimizerOptions& options) const = 0;
  /// The shape of `field` for a parameter of `sizes` with `options`. ConfigError for one that the
  /// rule cannot update.
  virtual StateShape shape(
      const torch::optim::OptimizerOptions& options, at::IntArrayRef sizes, size_t field) const = 0;
  /// Whether an update with `options` needs full parameters.
  virtual bool needs_full(const torch::optim::OptimizerOptions& options) const = 0;
  /// Of the parameter, or of the full parameter of a slice.
  std::vector<int64_t> whole_sizes(const at::Tensor& parameter) const;

  /// Returns copies of everything but tensors. No fields: it has not been updated yet.
  ParameterState state_of(const at::Tensor& parameter) const;
  /// Copies `state`'s tensors, cast to the state's dtype. Undefined fields: none yet. Call it for
  /// all parameters that are set, without a step or replay in between.
  void set_state(const at::Tensor& parameter, const ParameterState& state);

  /// Tensors that the last step updated, joined ones counted once: for tests and tuning.
  size_t run_count() const { return run_count_; }

 protected:
  FlatOptimizer(
      RuleTraits traits,
      std::vector<torch::optim::OptimizerParamGroup> groups,
      std::unique_ptr<torch::optim::OptimizerOptions> defaults);

  /// The initial value of state field `field`.
  virtual double initial(const torch::optim::OptimizerOptions& options, size_t field) const = 0;
  /// Advances a parameter's `scalars`, empty at first, to `step`; returns the factors for its
  /// update.
  virtual std::vector<double> advance(
      const torch::optim::OptimizerOptions& options,
      int64_t step,
      std::vector<float>& scalars) const = 0;
  /// The rule; depends only on its arguments.
  using UpdateFunction =
      void (*)(const torch::optim::OptimizerOptions& options, const Batch& batch);
  virtual UpdateFunction update_function() const = 0;
  virtual void update_sharded(
      const torch::optim::OptimizerOptions& options, const ShardedBatch& batch) const = 0;

 private:
  /// A parameter that an update needs in full, and ranks have slices of.
  struct FullParameter {
    flat::ShardBounds division;
    at::TensorOptions options;   ///< Of the slices.
    std::optional<size_t> item;  ///< This rank's slice, if it has one.
  };
  struct Place {
    size_t group = 0;
    size_t item = 0;
  };

  /// Copies steps and rate of a group to the device of its updates. ConfigError while capturing an
  /// impossible update.
  void place_numbers(size_t group);
  void check_sizes(const FlatParameter& item) const;
  /// Returns the batches of a group's items `begin` to `end`, after creating their state.
  UpdateBatches gather(size_t group, size_t begin, size_t end);
  bool group_needs_full(size_t group) const { return needs_full(param_groups_[group].options()); }
  void check_sharded(const OffloadOptimizer& offload, const std::optional<Group>& ranks) const;
  /// ConfigError for a parameter that the group's rule cannot update (any more).
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
  /// The range of a group's items in a buffer.
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
  std::optional<Group> dividers_;  ///< The ranks with the other slices of full parameters.
  std::vector<std::vector<FullParameter>> wholes_;  ///< [group] If sharded.
  std::vector<FlatGroup> groups_;
  std::vector<std::vector<at::TensorImpl*>> known_;  ///< [group] In the order of its params().
  std::vector<DeviceSteps> device_steps_;            ///< [group]
  /// [group] Null: the host's rate is read.
  std::vector<std::shared_ptr<DeviceRate>> device_rates_;
  size_t run_count_ = 0;
  std::function<void(const char* call)> call_guard_;
  bool has_slices_ = false;  ///< It updates slices in place of its parameters.
  std::shared_ptr<HostUpdate> host_update_;
  std::shared_ptr<SpeculativeStep> early_;
};

}  // namespace lockstep::optim
