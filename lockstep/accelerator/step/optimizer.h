// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

namespace internal {
class TrainingStep;
}  // namespace internal

namespace zero {
class Sharding;
}

/// A prepared optimizer: the handle that `Accelerator::prepare` returns for an optimizer of
/// lockstep::optim or torch::optim.
///
/// `step` and `zero_grad` do nothing in a micro-step that only accumulates. With fp16, `step`
/// unscales the gradients and skips the update if they overflowed. All other calls go to the
/// wrapped optimizer.
class [[nodiscard]] Optimizer {
 public:
  Optimizer() = default;  ///< Empty; only for later assignment.
  Optimizer(
      std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<internal::TrainingStep> step);

  /// Performs one update with the wrapped optimizer. Collective with fp16, a NonFinitePolicy, ZeRO
  /// or shared_parameters; in any case all processes must call it equally often.
  void step();
  /// Does the same with a closure that computes the loss again, for optimizers that need one. The
  /// optimizer gets the mean of the processes' losses, and this returns it, so that a line search
  /// decides alike on all of them. Throws ConfigError with fp16 or a NonFinitePolicy. Collective.
  at::Tensor step(const std::function<at::Tensor()>& closure);
  /// Drops the gradients of this optimizer's parameters, as torch's does; the next backward writes
  /// them into the buckets again. Under ZeRO a backward that averages after a step() without
  /// zero_grad() throws ConfigError, because it would add to used gradients.
  void zero_grad();
  /// Returns whether the last due step() skipped the update: gradients had overflowed, or were not
  /// finite.
  bool step_was_skipped() const;
  /// Returns the number of updates, including those before a resume.
  int64_t steps() const;
  void set_steps(int64_t steps);
  /// Returns whether a backward followed the last effective step() or zero_grad(): its gradients
  /// are part of the training state then.
  bool gradients_are_due() const;
  void set_gradients_due(bool due);

  /// Makes each rank update its shard and gather the others from now on; see zero::Sharding.
  void set_sharding(std::shared_ptr<zero::Sharding> sharding);
  bool is_sharded() const;
  /// Returns null unless sharded.
  zero::Sharding* sharding() const;

  torch::optim::Optimizer& inner() const;
  /// Returns all parameters of all groups, in order; under ZeRO this rank's shards of them.
  std::vector<at::Tensor> parameters() const;
  /// Returns the learning rates, one for each parameter group.
  std::vector<double> learning_rates() const;
  void set_learning_rates(const std::vector<double>& rates) const;

  friend bool operator==(const Optimizer&, const Optimizer&) = default;

 private:
  struct State;
  void report_complete_gradients();
  void end_update();
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
