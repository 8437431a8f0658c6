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
#include "lockstep/comm/named_tensor.h"
#include "lockstep/sync/backward_hooks.h"

namespace lockstep {

/// Looks for NaN and infinities in losses and in gradients before they are averaged, and says in
/// which step, on which rank, in which parameter they came up first.
///
/// Costs one read of every gradient, and one small all-gather an update; nothing with kIgnore. A
/// gradient whose sum overflows counts as infinite. Thread safety: none, beyond what backward
/// needs.
class FiniteGuard {
 public:
  FiniteGuard(NonFinitePolicy policy, Group group);

  NonFinitePolicy policy() const { return policy_; }
  /// Watches gradients of `parameters` that require one. To be called before anything else that
  /// hooks into their backward, an averaging above all. With a loss scaler infinite gradients are a
  /// matter of course: do not watch any then.
  void watch(const NamedTensors& parameters);
  /// Looks at this rank's loss.
  void look_at_loss(const at::Tensor& loss);
  /// Whether all ranks' losses and gradients since the last update were finite; else warns or
  /// throws Error. Collective at its first call after a backward. `step`: updates done so far.
  bool may_step(int64_t step);
  /// What was seen since the last update, and back: null if nothing.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);
  /// Gradients of `parameters` overflowed on some rank though nothing scales them: warns or throws
  /// Error. On all ranks alike.
  void overflowed_unscaled(const std::vector<at::Tensor>& parameters, int64_t step) const;

 private:
  struct Seen {
    bool bad_loss = false;
    std::string bad_parameter;
  };
  struct Watch {
    NamedTensors parameters;
    std::unique_ptr<BackwardHooks> hooks;
  };

  NonFinitePolicy policy_;
  Group group_;
  std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  std::vector<Watch> watches_;
  bool judged_ = false;
  bool verdict_ = true;
};

}  // namespace lockstep
