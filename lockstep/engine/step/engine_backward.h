// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/backward/collective_scope.h"
#include "lockstep/accelerator/backward/gradient_scope.h"
#include "lockstep/engine/state/engine_context.h"
#include "lockstep/engine/step/engine_call_options.h"
#include "lockstep/engine/step/micro_step_meter.h"

namespace lockstep {

/// Runs an engine's backward passes, and decides which of them average gradients. See Engine for
/// the functions. Not thread-safe; the Accelerator's callbacks come while a backward runs.
class EngineBackward : public std::enable_shared_from_this<EngineBackward> {
 public:
  EngineBackward(EngineContext& context, MicroStepMeter& meter)
      : context_(context), meter_(meter) {}

  /// Lets the Accelerator ask this object about backward passes that the program calls itself, and
  /// about the boundary. Called once.
  void register_callbacks();

  at::Tensor backward(const at::Tensor& loss, const EngineBackwardOptions& options);
  at::Tensor scale(const at::Tensor& loss);
  GradientScope no_sync();
  CollectiveScope begin_coalescing();

  /// Throws ConfigError within no_sync(), and after a program's backward that has thrown.
  void check_before_step();
  /// Averages the gradients of backward passes that averaged nothing. Collective.
  void average_pending_gradients();
  /// Returns whether all existing gradients are averaged.
  bool gradients_are_averaged() const { return gradients_are_averaged_; }
  void set_gradients_averaged(bool averaged) { gradients_are_averaged_ = averaged; }
  /// Releases the state of a program's backward that has thrown.
  void drop_unfinished_backward();

 private:
  void end_coalescing() { within_no_sync_ = within_coalescing_ = false; }
  bool defers_averaging() const;
  at::Tensor part_of_update(const char* where, const at::Tensor& loss, bool scale_wrt_gas);
  at::Tensor scaled_for_reduction(const at::Tensor& part) const;
  void begin_program_backward(int64_t update);
  void end_program_backward();
  void check_unscaled_backward();

  EngineContext& context_;
  MicroStepMeter& meter_;
  bool within_no_sync_ = false;
  bool within_coalescing_ = false;
  bool gradients_are_averaged_ = true;
  // State of a running backward of a loss from scale().
  bool program_backward_is_running_ = false;
  std::optional<GradientScope> program_backward_no_sync_;
};

}  // namespace lockstep
