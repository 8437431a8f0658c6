// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/options/non_finite_policy.h"
#include "lockstep/accelerator/step/training_step_observer.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/sync/backward_hooks.h"

namespace lockstep::internal {

/// Detects NaN and infinities in losses and in gradients before they are averaged, and reports the
/// step, rank and parameter of the first one.
///
/// Costs one read of every gradient, and one small all-gather an update; nothing with kIgnore. A
/// gradient whose sum overflows counts as infinite. Not thread-safe, except for calls from
/// backward.
class FiniteGuard final : public TrainingStepObserver {
 public:
  /// `scaled`: a loss scaler makes infinite gradients normal, so only losses are checked.
  FiniteGuard(NonFinitePolicy policy, bool scaled, Group group);

  /// Watches the gradients of `parameters` that require one: before the averaging does.
  void model_given(const NamedTensors& parameters) override;
  /// Throws ConfigError, since a closure computes gradients after the check.
  void before_closure() override;
  /// Checks this rank's loss.
  void loss_given(const GivenLoss& given) override;
  /// Checks a gradient that the program has set itself; `what` names it.
  void check_gradient(const at::Tensor& gradient, const std::string& what);
  /// Returns whether all ranks' losses and gradients since the last update were finite; else warns
  /// or throws Error. Collective at its first call after a backward. `step`: updates done so far.
  bool may_update(int64_t step) override;
  /// Saves and restores the findings since the last update; null if there are none.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);
  /// Warns or throws Error, on all ranks alike.
  void overflowed_unscaled(const Optimizer& optimizer) override;
  /// Stops watching.
  void objects_forgotten() override;

 private:
  struct Findings {
    bool bad_loss = false;
    std::string bad_parameter;
  };
  struct Watch {
    NamedTensors parameters;
    std::unique_ptr<BackwardHooks> hooks;
  };

  NonFinitePolicy policy_;
  bool scaled_;
  Group group_;
  std::shared_ptr<Findings> findings_ = std::make_shared<Findings>();
  std::vector<Watch> watches_;
  bool checked_ = false;
  bool all_finite_ = true;
};

}  // namespace lockstep::internal
