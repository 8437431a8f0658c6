// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/precision/grad_scaler.h"

namespace lockstep::internal {

/// Holds fp16's loss scaler, if there is one, and decides when its scale changes.
///
/// The scale is updated after all optimizers had their step: at the next micro-step, or at the next
/// backward outside of any. So it never changes within an accumulation group.
class LossScaling {
 public:
  using Rule = std::function<double(bool overflowed)>;

  LossScaling() = default;  ///< Without a scaler.
  /// `rule`: replaces the scaler's own if it is set.
  LossScaling(const GradScalerOptions& options, Rule rule, Group group)
      : scaler_(std::in_place, options, std::move(group)), rule_(std::move(rule)) {}

  /// Returns null without fp16.
  GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  const GradScaler* scaler() const { return scaler_ ? &*scaler_ : nullptr; }

  /// Lets the next update_if_due() update the scale.
  void mark_due() { is_due_ = true; }
  /// Updates the scale if an optimizer has stepped since the last call. Collective with a scaler.
  void update_if_due();
  /// Restores a saved scale; without fp16 it must not be called.
  void load(const nlohmann::json& state);
  /// Returns the number of updates of the scale.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  /// Forgets the optimizers that have unscaled gradients.
  void forget_optimizers();

 private:
  std::optional<GradScaler> scaler_;
  Rule rule_ = nullptr;
  bool is_due_ = false;
  int64_t updates_ = 0;
};

}  // namespace lockstep::internal
