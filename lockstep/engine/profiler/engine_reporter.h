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

/// Durations of the parts of a micro-step, or of all micro-steps of an update.
struct MicroStepTimes {
  using Clock = std::chrono::steady_clock;
  double forward_ms = 0;
  double backward_ms = 0;
  /// Part of backward: until this rank's gradients were computed, including the averaging in
  /// parallel. Measured only if times are reported.
  double backward_inner_ms = 0;
  /// Part of backward: from then until all gradients were averaged, including the wait for slower
  /// ranks.
  double backward_allreduce_ms = 0;
  double step_ms = 0;

  MicroStepTimes& operator+=(const MicroStepTimes& other) {
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

/// The facts reported for one update.
struct UpdateFacts {
  int64_t global_steps = 0;
  int64_t global_samples = 0;
  int64_t skipped_steps = 0;
  std::optional<double> loss;  ///< Mean over the micro-steps, of this rank.
  std::vector<double> lr;
  std::vector<double> mom;
  std::optional<double> loss_scale;
  MicroStepTimes timers;
  std::optional<CheckpointTimes> checkpoints;  ///< With activation_checkpointing.profile.
};

/// Writes the reports that a ds_config.json requests: steps_per_print, wall_clock_breakdown, the
/// checkpoints' profile, the throughput timer, and the monitors, whose curves have DeepSpeed's
/// names and are over samples. Acts on the main process only.
class EngineReporter {
 public:
  EngineReporter(const ds_config::DsConfig& config, bool is_main_process);

  /// Returns whether report_update uses the loss, which costs a wait for the device.
  bool needs_loss() const { return !trackers_.empty(); }
  /// Returns whether timers are reported; a GPU's need a wait for the device.
  bool needs_times() const { return breakdown_; }
  /// Reports one micro-step. Call it after each step(), with the durations since the previous one.
  void report_micro_step(const MicroStepTimes& timers) const;
  /// Reports an update. Call it after the update.
  void report_update(const UpdateFacts& facts);
  /// Writes values to the monitors, over samples.
  void log(const tracking::Values& values, int64_t samples);
  /// Restarts the throughput timer: a resumed run has not just processed `global_samples`.
  void restart_throughput(int64_t global_samples);
  /// Marks the monitors' runs as finished. Without it they look interrupted.
  void finish();

 private:
  std::optional<int64_t> steps_per_print_;
  bool breakdown_ = false;
  bool checkpoints_ = false;
  bool throughput_ = false;
  std::vector<std::shared_ptr<tracking::Tracker>> trackers_;
  std::chrono::steady_clock::time_point last_print_ = std::chrono::steady_clock::now();
  int64_t samples_at_print_ = 0;
};

}  // namespace lockstep
