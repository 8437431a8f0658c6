// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/comm/group.h"
#include "lockstep/optim/flat/parameter_state.h"
#include "lockstep/optim/flat/update_rule.h"
#include "lockstep/zero_options/offload.h"

namespace lockstep::optim {

class DeviceStepsAndRates;
class HostStrategy;
class HostUpdate;
class FlatParameterGroups;
class SpeculativeUpdates;
class UpdateStrategy;

/// The base of every optimizer of lockstep::optim. It is a torch::optim::Optimizer, so schedulers,
/// `Accelerator::prepare` and other users of torch's optimizers accept it.
///
/// - Parameters and state are in flat buffers (see FlatParameterGroup). `step` updates parameters
///   that are adjacent in memory, with adjacent gradients and state, as one tensor, as in
///   DataParallel's buckets. The same calls update the remaining tensors, passed as a list. In fp32
///   and fp64 the result is bit-exact with an update of each parameter alone, so replicas stay
///   equal. In half precision it is not: on the CPU libtorch rounds the last elements of a tensor
///   differently.
/// - A parameter without gradient is skipped, and does not count the step, as in torch. A parameter
///   repeated in a group is updated once; a parameter in two groups throws ConfigError.
/// - Move the model first (`Module::to`), then construct this, or call `follow_parameters`, as
///   `Accelerator::prepare` does. A parameter that is moved later (`set_data`) keeps its state,
///   which follows at its next step, but is no longer joined, and the old buffer stays allocated. A
///   changed shape throws ConfigError at the next step.
/// - State has the parameter's dtype, as in torch.optim, so bf16 parameters have bf16 state; but
///   see `update_shards`. `state()` is empty; `optimizer_tensors` (state/optimizer_state.h) returns
///   it by name.
/// - `share` and `update_shards` choose another UpdateStrategy: ranks of one host share parameters
///   and state, or each rank updates its shard slices, on the device or on the host.
/// - `capturable`, as torch.optim's: with parameters on a device, `step` can be captured in a graph
///   (at::accelerator::Graph, at::cuda::CUDAGraph) and replayed. Steps and the learning rate are
///   float32 tensors on the device, and `step` reads nothing back. `set_lr` and schedules write the
///   rate, so replays follow it; other options keep their values of the capture. Call `step` at
///   least once before the capture, which creates the state; parameters and gradients must keep
///   their memory. A capture of a group that is not capturable, or has no state yet, throws
///   ConfigError. Results equal those of a learning rate rounded to float32; rules without a fused
///   kernel may differ in the last bit. No effect on the CPU. Cannot be combined with an offloaded
///   update.
/// - `zero_grad` is torch's: it drops gradients, or zeroes them in place if passed false.
/// - `Accelerator::prepare` sets a call guard: a direct `step` of a prepared optimizer throws
///   ConfigError.
///
/// For dense real parameters; sparse gradients throw ConfigError.
class FlatOptimizer : public torch::optim::Optimizer {
 public:
  using ParameterState = optim::ParameterState;
  using BufferSlices = optim::BufferSlices;

  ~FlatOptimizer() override;
  FlatOptimizer(FlatOptimizer&& other) noexcept;

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

  /// Lays out parameters added to `param_groups()`, as `step` does. Throws ConfigError for invalid
  /// ones.
  void adopt_parameters();
  /// Lays out moved parameters and their state again, for instance on another device.
  void follow_parameters();
  /// Moves parameters and state to memory that the ranks of `group` share; see
  /// FlatParameterGroup::share. `step` then is collective, and needs the same gradients on all
  /// ranks. Each rank updates its share and reads the result of the others without a message.
  /// Bit-exact. Throws ConfigError after `update_shards`. Collective.
  void share(const Group& group);
  bool is_shared() const;
  /// From now on `step` updates `slices`, [group][buffer], instead of its parameters. If the slices
  /// are not on the device, or `offload` offloads the state, the host updates bucket by bucket; see
  /// HostStrategy. Updates of fp16 and bf16 slices run in fp32, and are rounded once. Their state
  /// has their dtype, or with `fp32_state` is fp32. For a rule that needs full parameters `ranks`
  /// own the other slices; `step` then is collective, and needs gradients of the same parameters on
  /// all ranks. `step` is also collective if any state or parameters are in files: a disk error on
  /// one of `ranks` throws ConfigError on all. Throws ConfigError for a rule that needs full
  /// parameters without `ranks` or with `offload`, after the first step, and for an impossible
  /// offload.
  void update_shards(
      const std::vector<std::vector<BufferSlices>>& slices,
      const OffloadOptimizer& offload = {},
      const std::optional<Group>& ranks = std::nullopt,
      bool fp32_state = false);
  /// Returns the update that runs on the CPU; null if it runs on the parameters' device.
  const HostUpdate* host_update() const;
  /// Returns the object that begins updates before `step`; null without
  /// OffloadOptimizer::super_offload. Keep it as a weak_ptr: it must not outlive this.
  std::shared_ptr<SpeculativeUpdates> speculative() const;
  /// Copies changed learning rates to the devices that read them, as `step` does.
  void write_rates();

  const UpdateRule& rule() const;
  const RuleTraits& traits() const { return rule().traits(); }
  /// Creates state that is missing because an option was enabled later.
  void complete_state();
  /// Returns the sizes of the parameter, or of the full parameter of a shard slice.
  std::vector<int64_t> full_sizes(const at::Tensor& parameter) const;
  /// Returns the state; its tensors are not copied. No fields: the parameter has not been updated
  /// yet.
  ParameterState state_of(const at::Tensor& parameter) const;
  /// Copies `state`'s tensors, cast to the state's dtype. Undefined fields: none yet. To load a
  /// state, call it for every parameter, without a step or graph replay in between.
  void set_state(const at::Tensor& parameter, const ParameterState& state);

  /// Returns the number of tensors that the last step updated, joined ones counted once, for tests
  /// and tuning.
  size_t run_count() const { return run_count_; }

 protected:
  FlatOptimizer(
      std::shared_ptr<const UpdateRule> rule,
      std::vector<torch::optim::OptimizerParamGroup> groups,
      std::unique_ptr<torch::optim::OptimizerOptions> defaults);

 private:
  void check_can_shard(const OffloadOptimizer& offload, const std::optional<Group>& ranks);
  void discard_speculative();

  std::unique_ptr<FlatParameterGroups> flat_groups_;
  std::unique_ptr<DeviceStepsAndRates> steps_and_rates_;
  std::unique_ptr<UpdateStrategy> strategy_;
  HostStrategy* host_ = nullptr;  ///< `strategy_`, if that is one.
  std::function<void(const char* call)> call_guard_;
  size_t run_count_ = 0;
};

}  // namespace lockstep::optim
