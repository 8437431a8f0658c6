// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/engine/state/engine_context.h"
#include "lockstep/engine/step/engine_backward.h"
#include "lockstep/engine/step/engine_call_options.h"
#include "lockstep/engine/step/micro_step_meter.h"

namespace lockstep {

/// Ends an engine's micro-steps, and at the boundary clips and updates. See Engine::step.
class EngineUpdate {
 public:
  EngineUpdate(EngineContext& context, MicroStepMeter& meter, EngineBackward& backward)
      : context_(context), meter_(meter), backward_(backward) {}

  void step(const EngineStepOptions& options);
  /// Returns whether the last step() changed the parameters.
  bool was_step_applied() const { return step_was_applied_; }
  /// Returns the gradient norm of the last update, before clipping. Waits for the device.
  std::optional<double> global_grad_norm() const;
  void reset_grad_norm() { norm_.reset(); }

 private:
  void check_step(const EngineStepOptions& options, bool is_boundary) const;
  void update(const EngineStepOptions& options);
  void check_unused_parameters() const;
  void clip_gradients();
  void drop_gradients();

  EngineContext& context_;
  MicroStepMeter& meter_;
  EngineBackward& backward_;
  bool step_was_applied_ = false;
  at::Tensor norm_;  ///< 0-d.
};

}  // namespace lockstep
