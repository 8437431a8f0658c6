// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/loop/finite_guard.h"
#include "lockstep/accelerator/loop/loss_watch.h"
#include "lockstep/accelerator/options/options.h"
#include "lockstep/precision/grad_scaler.h"

namespace lockstep {

class StepRecorder;

/// The position of this process in an accumulation group.
struct AccumulationState {
  GradientAccumulationPlugin plugin;

  bool sync_gradients = true;  ///< Of the last micro-step; true before the first.
  /// Returns whether the running backward is the last of an update, if the engine, not
  /// accumulate(), counts micro-steps.
  std::function<bool()> ends_update = nullptr;
  bool in_micro_step = false;
  int64_t step = 0;      ///< Accelerate's counter: micro-steps since a loader's end.
  int64_t in_group = 0;  ///< Micro-steps of the current accumulation group so far.
  int no_sync_depth = 0;
  bool sync_triggered = false;  ///< Within no_sync, by trigger_sync_in_backward.
  int64_t counts_in_micro_step = 0;
  /// The sum of this rank's counts of backward(loss_sum, count) since the last update.
  std::optional<double> counted = std::nullopt;

  /// Returns whether a backward averages gradients now.
  bool averages() const { return sync_gradients && (no_sync_depth == 0 || sync_triggered); }
  /// Returns whether the running backward is the last of an update.
  bool is_last_of_update() const { return ends_update ? ends_update() : sync_gradients; }
  /// Restores the position before the first micro-step.
  void reset() {
    sync_gradients = true;
    step = 0;
    in_group = 0;
    counted.reset();
  }
};

/// fp16's loss scaler and the moment of its updates. The scale is updated after all optimizers had
/// their step: at the next micro-step, or at the next backward outside of any. So it never changes
/// within an accumulation group.
struct LossScaling {
  std::optional<GradScaler> scaler;  ///< Null without fp16.
  std::function<double(bool overflowed)> loss_scale_rule = nullptr;
  bool update_due = false;
  int64_t updates = 0;  ///< Updates of the scale.

  void update_if_due() {
    if (scaler && update_due) {
      scaler->update(
          loss_scale_rule ? std::optional(loss_scale_rule(scaler->found_inf())) : std::nullopt);
      ++updates;
      update_due = false;
    }
  }
};

/// The state between two updates that backward, optimizers and schedulers of one Accelerator share.
struct LoopState {
  /// One call of clip_grad_norm_, and the norm it found.
  struct Clipped {
    double max_norm;
    double norm_type;
    std::vector<const void*> parameters;
    at::Tensor norm;
  };

  AccumulationState accumulation;
  LossScaling scaling;
  std::shared_ptr<FiniteGuard> finite;
  LossWatch losses;                        ///< Used if `finite` ignores losses.
  std::shared_ptr<StepRecorder> recorder;  ///< Null without AcceleratorOptions::record_steps.

  /// Backward passes in this process; an optimizer stores the number of the last one it used.
  int64_t backward_passes = 0;
  bool gradients_expected = false;  ///< A loss has depended on a tensor that requires gradients.
  bool gradients_used = false;      ///< A step of any optimizer has found gradients.
  int64_t optimizers = 0;           ///< Number of prepared optimizers.
  int64_t prepared_steps = 0;       ///< Calls of step() that prepared optimizers have acted on.
  /// Calls since the processes were last made equal, which all make in the same number.
  struct Calls {
    int64_t steps = 0;      ///< Calls of step() that prepared optimizers have acted on.
    int64_t clippings = 0;  ///< Calls of clip_grad_norm_ and clip_grad_value_.
  } calls;
  bool offloaded = false;  ///< A state is offloaded by offload_states.
  bool joining = false;    ///< A join_uneven_inputs is running.
  /// Compares, over all ranks, the parameters of an optimizer that no prepared model has. Returns
  /// whether no further check is needed; throws ConfigError if ranks differ. Collective. Empty: no
  /// check.
  std::function<bool(const std::vector<at::Tensor>& parameters)> agree_on_unprepared = nullptr;
  /// Returns the mean of a number over all processes. Collective.
  std::function<at::Tensor(const at::Tensor& value)> mean_over_ranks = nullptr;
  /// Checks the prepared objects before an update. Empty: no check.
  std::function<void()> before_update = nullptr;
  /// Set since the last backward, update or zero_grad.
  std::vector<Clipped> clipped;

  /// Restores the state before the first micro-step.
  void reset_accumulation() {
    accumulation.reset();
    clipped.clear();
    calls = {};
  }
  /// Restores the state before the first prepare(). `group`: all processes.
  void forget_prepared(const Group& group);
  /// Throws ConfigError, in the name of `where`, while a state is offloaded.
  void refuse_offloaded(const char* where) const;
};

/// Returns the state of a new loop of all processes of `group`. `scaled`: with fp16's loss scaler.
std::shared_ptr<LoopState> new_loop_state(
    const AcceleratorOptions& options, bool scaled, const Group& group);

}  // namespace lockstep
