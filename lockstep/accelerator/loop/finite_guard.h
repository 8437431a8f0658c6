// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/options/non_finite_policy.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/sync/backward_hooks.h"

namespace lockstep {

/// Detects NaN and infinities in losses and in gradients before they are averaged, and reports the
/// step, rank and parameter of the first one.
///
/// Costs one read of every gradient, and one small all-gather an update; nothing with kIgnore. A
/// gradient whose sum overflows counts as infinite. Not thread-safe, except for calls from
/// backward.
class FiniteGuard {
 public:
  FiniteGuard(NonFinitePolicy policy, Group group);

  NonFinitePolicy policy() const { return policy_; }
  /// Watches the gradients of `parameters` that require one. Call it before any other hook into
  /// their backward is installed, in particular the averaging. Do not watch gradients with a loss
  /// scaler, which makes infinite gradients normal.
  void watch(const NamedTensors& parameters);
  /// Checks this rank's loss.
  void check_loss(const at::Tensor& loss);
  /// Checks a gradient that the program has set itself; `what` names it.
  void check_gradient(const at::Tensor& gradient, const std::string& what);
  /// Returns whether all ranks' losses and gradients since the last update were finite; else warns
  /// or throws Error. Collective at its first call after a backward. `step`: updates done so far.
  bool may_step(int64_t step);
  /// Saves and restores the findings since the last update; null if there are none.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);
  /// Warns or throws Error because gradients of `parameters` overflowed on some rank without a loss
  /// scale. On all ranks alike.
  void overflowed_unscaled(const std::vector<at::Tensor>& parameters, int64_t step) const;

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
  Group group_;
  std::shared_ptr<Findings> findings_ = std::make_shared<Findings>();
  std::vector<Watch> watches_;
  bool checked_ = false;
  bool all_finite_ = true;
};

}  // namespace lockstep
