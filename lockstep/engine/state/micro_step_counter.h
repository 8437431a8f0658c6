// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ds_config/ds_config.h"

namespace lockstep {

/// Numbers of micro-steps, updates and samples since the start of the training, with resumes.
struct TrainingCounts {
  int64_t micro_steps = 0;
  int64_t global_steps = 0;    ///< Updates, including skipped ones.
  int64_t global_samples = 0;  ///< Samples of all ranks in these updates.
  int64_t skipped_steps = 0;   ///< Updates that were skipped for an overflow.
};

/// Counts an engine's micro-steps, and decides which of them ends an update (the accumulation
/// boundary). Holds the batch sizes. Arithmetic only; not thread-safe. Modelled on DeepSpeed's
/// engine.
class MicroStepCounter {
 public:
  MicroStepCounter(const ds_config::DsConfig& config, int ranks);

  /// Returns the samples of all ranks in an update.
  int64_t train_batch_size() const;
  int64_t micro_batch_size() const { return micro_batch_size_; }
  /// Returns the micro-steps in an update.
  int64_t gradient_accumulation_steps() const { return gradient_accumulation_steps_; }
  /// Makes each step an update of all micro-steps, as with a pipeline.
  void set_steps_all_at_once() { steps_all_at_once_ = true; }
  /// Returns the number of losses whose mean an update minimises.
  int64_t losses_in_update() const { return steps_all_at_once_ ? 1 : gradient_accumulation_steps_; }
  /// Changes the micro-steps in an update. Throws ConfigError unless ranks times micro-batch divide
  /// `size`.
  void set_train_batch_size(int64_t size);
  /// Throws ConfigError for a size below 1.
  void set_micro_batch_size(int64_t size);

  /// Returns whether the current micro-step is the last of its update.
  bool is_boundary() const;
  /// Sets the boundary: from now on `is_boundary` decides, not the count of micro-steps.
  void set_boundary(bool is_boundary) { boundary_ = is_boundary; }

  const TrainingCounts& counts() const { return counts_; }
  void set_counts(const TrainingCounts& counts) { counts_ = counts; }
  /// Counts a backward pass: without managed accumulation an update has one micro-batch for each.
  void end_backward() { ++backward_passes_; }
  void end_micro_step() {
    counts_.micro_steps += steps_all_at_once_ ? gradient_accumulation_steps_ : 1;
  }
  void end_update(bool was_applied);

 private:
  int ranks_;
  bool steps_all_at_once_ = false;
  bool counts_boundary_;  ///< managed_gradient_accumulation; without it each step is an update.
  int64_t gradient_accumulation_steps_;
  int64_t micro_batch_size_;
  std::optional<bool> boundary_;  ///< Set by the program instead of counted.
  TrainingCounts counts_;
  int64_t backward_passes_ = 0;  ///< Since the last update.
};

}  // namespace lockstep
