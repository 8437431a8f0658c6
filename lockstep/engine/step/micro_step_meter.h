// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/engine/profiler/engine_reporter.h"
#include "lockstep/engine/profiler/flops_profiler.h"
#include "lockstep/engine/state/engine_context.h"

namespace lockstep {

/// Measures forward, backward and step of each micro-step, and reports what ds_config.json
/// requests: times, memory, FLOPs, and the curves of the monitors.
///
/// Cost: a wait for the device at each measurement if times are reported, or the micro-step is
/// profiled; otherwise a clock read.
class MicroStepMeter {
 public:
  using Time = MicroStepTimes::Clock::time_point;
  /// The start of a forward or a step.
  struct Start {
    Time began;
    bool profiled = false;  ///< flops_profiler profiles this micro-step.
  };

  explicit MicroStepMeter(EngineContext& context);

  /// Returns the time after the device has finished its work, if times are reported.
  Time now() const;

  Start begin_forward();
  void end_forward(const Start& start);

  void begin_backward();
  /// Returns whether mark_gradients_computed must be called during a backward.
  bool measures_gradient_averaging() const { return reporter_.needs_times(); }
  /// Marks the time at which this rank's gradients are computed; averaging continues.
  void mark_gradients_computed();
  void end_backward();
  /// Adds the time since `began` as averaging outside of a backward.
  void add_gradient_averaging(Time began);
  /// Adds a micro-step's part of the mean loss of the update.
  void add_loss(const at::Tensor& part);

  Start begin_step();
  /// Reports the micro-step, and with `is_update` the update.
  void end_step(const Start& start, bool is_update);

  /// Logs the memory in use, with memory_breakdown.
  void log_memory(const char* when) const;
  /// Forgets the losses since the last update.
  void reset_loss() { loss_sum_.reset(); }
  /// Drops all tensors, so that their memory can be freed.
  void release() {
    loss_sum_.reset();
    profile_.clear();
  }
  /// Restarts the throughput timer after a resume.
  void restart_throughput() {
    reporter_.restart_throughput(context_.counter.counts().global_samples);
  }

 private:
  bool is_profiled() const;
  Time synchronized_now() const;
  void report_profile();
  void report_update();

  EngineContext& context_;
  EngineReporter& reporter_;
  MicroStepTimes micro_step_;  ///< Since the last step().
  MicroStepTimes update_;      ///< Of the micro-steps since the last update.
  Time backward_began_;
  Time gradients_computed_at_;
  at::Tensor loss_sum_;  ///< Over the micro-steps since the last update.
  FlopsProfile profile_;
};

}  // namespace lockstep
