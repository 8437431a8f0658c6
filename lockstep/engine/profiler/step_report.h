// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/ds_config/ds_config.h"
#include "lockstep/tracking/tracker.h"
#include "lockstep/zero/activation/activation_checkpointing.h"

namespace lockstep {

/// Time of the parts of a micro-step, or of all those of an update.
struct StepTimers {
  using Clock = std::chrono::steady_clock;
  double forward_ms = 0;
  double backward_ms = 0;
  /// Of it until this rank's gradients were computed, with what of their averaging has been under
  /// way meanwhile; where somebody wants times.
  double backward_inner_ms = 0;
  /// And from then until all were averaged, where they are: waiting for slower ranks, too.
  double backward_allreduce_ms = 0;
  double step_ms = 0;

  StepTimers& operator+=(const StepTimers& other) {
    forward_ms += other.forward_ms;
    backward_ms += other.backward_ms;
    backward_inner_ms += other.backward_inner_ms;
    backward_allreduce_ms += other.backward_allreduce_ms;
    step_ms += other.step_ms;
    return *this;
  }

  /// Adds the time from `begin` to `end`, and returns it.
  static double add(double& part_ms, Clock::time_point begin, Clock::time_point end) {
    const double ms = std::chrono::duration<double, std::milli>(end - begin).count();
    part_ms += ms;
    return ms;
  }
};

/// What is told of one update.
struct StepFacts {
  int64_t global_steps = 0;
  int64_t global_samples = 0;
  int64_t skipped_steps = 0;
  std::optional<double> loss;  ///< Mean over the micro-steps, of this rank.
  std::vector<double> lr;
  std::vector<double> mom;
  std::optional<double> loss_scale;
  StepTimers timers;
  std::optional<CheckpointTimes> checkpoints;  ///< With activation_checkpointing.profile.
};

/// What a ds_config.json wants said and kept of a run: steps_per_print, wall_clock_breakdown, the
/// checkpoints' profile, the throughput timer, and the monitors, whose curves have DeepSpeed's
/// names and are over samples. On the main process; nothing elsewhere. Thread safety: none.
class StepReport {
 public:
  StepReport(const ds_config::DsConfig& config, bool is_main_process);

  /// Whether `tell` would use the loss, which costs waiting for the device.
  bool wants_loss() const { return !trackers_.empty(); }
  /// Whether `tell` would use the timers, of which a device's need waiting for it.
  bool wants_times() const { return breakdown_; }
  /// After each step(): what it took, and what came since the one before it.
  void tell_micro_step(const StepTimers& timers) const;
  /// After an update.
  void tell(const StepFacts& facts);
  /// What is told from now on counts from there: a run that goes on has not just made these
  /// samples.
  void go_on_from(int64_t global_samples);

 private:
  std::optional<int64_t> steps_per_print_;
  bool breakdown_ = false;
  bool checkpoints_ = false;
  bool throughput_ = false;
  std::vector<std::unique_ptr<tracking::Tracker>> trackers_;
  std::chrono::steady_clock::time_point last_print_ = std::chrono::steady_clock::now();
  int64_t samples_at_print_ = 0;
};

}  // namespace lockstep
