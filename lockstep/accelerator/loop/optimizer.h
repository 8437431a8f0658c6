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

struct LoopState;
namespace zero {
class Sharding;
}

/// A prepared optimizer: what `Accelerator::prepare` makes of one of ours or of torch::optim's. A
/// handle.
///
/// `step` and `zero_grad` do nothing in a micro-step that only accumulates. With fp16, `step` takes
/// the scale off the gradients and leaves the update out where they overflowed. Everything else is
/// the optimizer within. Thread safety: none.
class Optimizer {
 public:
  Optimizer() = default;  ///< Empty; only to be assigned to.
  Optimizer(std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<LoopState> loop);

  /// One update by the wrapped optimizer. With fp16 or a NonFinitePolicy: collective.
  void step();
  /// The same with a closure that computes the loss again, for optimizers that need one. Not with
  /// fp16.
  at::Tensor step(const std::function<at::Tensor()>& closure);
  /// Drops the gradients of this optimizer's parameters, as torch's does; the next backward's lie
  /// in their buckets again. Under ZeRO a backward that averages after a step() without is a
  /// ConfigError, for it would add to what that has used.
  void zero_grad();
  /// Whether the last step() that was due left the update out: gradients had overflowed, or were
  /// not finite.
  bool step_was_skipped() const;
  /// Updates done, by this process or those it was resumed from.
  int64_t steps() const;
  void set_steps(int64_t steps);
  /// Whether a backward came after the last step() or zero_grad() that did anything: its gradients
  /// are a part of the state then.
  bool gradients_are_due() const;
  void set_gradients_due(bool due);

  /// From now on each rank updates its part, and all get the others'; see zero::Sharding.
  void set_sharding(std::shared_ptr<zero::Sharding> sharding);
  bool is_sharded() const;
  /// Null unless it is.
  zero::Sharding* sharding() const;

  torch::optim::Optimizer& inner() const;
  /// All parameters of all groups, in order; under ZeRO this rank's pieces of them.
  std::vector<at::Tensor> parameters() const;
  /// Learning rates, one a parameter group.
  std::vector<double> learning_rates() const;
  void set_learning_rates(const std::vector<double>& rates) const;

  friend bool operator==(const Optimizer&, const Optimizer&) = default;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
