// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/step/loss_scaling.h"

#include <nlohmann/json.hpp>

namespace lockstep::internal {

void LossScaling::update_if_due() {
  if (scaler_ && is_due_) {
    scaler_->update(rule_ ? std::optional(rule_(scaler_->found_inf())) : std::nullopt);
    ++updates_;
    is_due_ = false;
  }
}

void LossScaling::load(const nlohmann::json& state) {
  is_due_ = false;
  scaler_->load_state(state);
}

void LossScaling::forget_optimizers() {
  is_due_ = false;
  if (scaler_) {
    scaler_->forget_optimizers();
  }
}

}  // namespace lockstep::internal
