// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/options/options.h"
#include "lockstep/accelerator/step/loss_scaling.h"
#include "lockstep/accelerator/step/training_step_observer.h"

namespace lockstep::internal {

/// The position of this process in an accumulation group: the micro-steps of one update.
struct AccumulationPosition {
  bool sync_gradients = true;  ///< Of the last micro-step; true before the first.
  bool in_micro_step = false;
  int64_t step = 0;      ///< Accelerate's counter: micro-steps since a loader's end.
  int64_t in_group = 0;  ///< Micro-steps of the current group so far.
  int no_sync_depth = 0;
  bool sync_triggered = false;  ///< Within no_sync, by trigger_sync_in_backward.
  int64_t counts_in_micro_step = 0;
  /// The sum of this rank's counts of backward(loss_sum, count) since the last update.
  std::optional<double> counted = std::nullopt;

  /// Returns whether a backward averages gradients now.
  bool averages() const { return sync_gradients && (no_sync_depth == 0 || sync_triggered); }
};

/// Owns the state of a training loop between two updates. Only its functions, and those of its
/// LossScaling, write to it.
///
/// The parts of an Accelerator report events to it, in the order of a step:
///
///     step.begin_micro_step(at_end);                   // accelerator.accumulate()
///     const double factor = step.loss_factor();
///     step.give_loss({loss});                          // accelerator.backward(loss)
///     step.scale(at::mul(loss, factor)).backward();
///     step.notify(&TrainingStepObserver::backward_ended);
///     step.begin_update(optimizer);                    // optimizer.step()
///     step.run_update(optimizer, [&] { ... });
///     step.end_update({optimizer, ...});
///     step.end_micro_step();
///
/// It counts, keeps the loss scale and the results of clipping, and tells its observers. Prepared
/// optimizers and schedulers share it, and may outlive the Accelerator. Cost: a few comparisons and
/// a virtual call for each observer.
class TrainingStep {
 public:
  /// Numbers of calls since the processes were last made equal, which all make equally often.
  struct Calls {
    int64_t steps = 0;      ///< Calls of step() that prepared optimizers have acted on.
    int64_t clippings = 0;  ///< Calls of clip_grad_norm_ and clip_grad_value_.
  };

  /// `group`: all processes. `scaled`: with fp16's loss scaler.
  TrainingStep(const AcceleratorOptions& options, bool scaled, const Group& group);
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  /// Adds an observer, which must live until remove_observers().
  void add_observer(TrainingStepObserver& observer) { observers_.push_back(&observer); }
  /// Adds an observer that stays: it also observes optimizers that outlive the Accelerator.
  void add_observer(const std::shared_ptr<TrainingStepObserver>& observer);
  /// Removes those that do not stay.
  void remove_observers();
  /// Calls a function of all observers: `step.notify(&TrainingStepObserver::part_ended)`. For
  /// events that no function below reports.
  template <class... Parameters, class... Arguments>
  void notify(void (TrainingStepObserver::*event)(Parameters...), const Arguments&... arguments) {
    for (TrainingStepObserver* observer : observers_) {
      (observer->*event)(arguments...);
    }
  }

  // --- accumulation
  const GradientAccumulationPlugin& accumulation() const { return accumulation_; }
  /// Changes num_steps of the next accumulation groups. Throws ConfigError for less than 1, and
  /// within a group.
  void set_accumulation_steps(int64_t steps);
  const AccumulationPosition& position() const { return position_; }
  bool sync_gradients() const { return position_.sync_gradients; }
  /// Returns whether the running backward is the last of an update.
  bool is_last_of_update() const {
    return ends_update_ ? ends_update_() : position_.sync_gradients;
  }
  /// Lets `ends_update` decide it, for an engine, which counts micro-steps itself.
  void set_ends_update(std::function<bool()> ends_update) { ends_update_ = std::move(ends_update); }
  /// Begins a micro-step of accumulate(). `at_end`: a loader ends, and with it the group. Returns
  /// the factor by which the gradients of earlier micro-steps must be multiplied: their losses were
  /// divided by num_steps, and the group may be shorter; 1 without rescale_short_group. Throws
  /// ConfigError within another one. Collective if fp16's scale is due.
  double begin_micro_step(bool at_end);
  void end_micro_step() { position_.in_micro_step = false; }
  void begin_no_sync() { ++position_.no_sync_depth; }
  void end_no_sync();
  /// Reports that a scope keeps gradients on their process, and does not average them.
  void mark_not_averaged() { any_not_averaged_ = true; }
  /// Returns whether any scope has done so, since the last forget_objects().
  bool any_not_averaged() const { return any_not_averaged_; }
  /// Throws ConfigError outside of no_sync.
  void trigger_sync();

  // --- backward
  /// Returns the factor of a loss in the current micro-step. Throws ConfigError in a group with a
  /// backward(loss_sum, count).
  double loss_factor() const;
  /// Adds the count of a backward(loss_sum, count). Returns whether it is the first since the last
  /// update. Throws ConfigError if it cannot be added.
  bool add_count(double count);
  /// Returns this rank's count since the last update, and begins to count again.
  double take_count();
  /// Reports a loss to the observers, and counts its backward. Collective if fp16's scale is due.
  void give_loss(const GivenLoss& given);
  /// Returns `loss` multiplied by fp16's loss scale.
  at::Tensor scale(const at::Tensor& loss);
  /// Counts a backward; give_loss() does it for those of given losses.
  void count_backward();
  /// Forgets the results of clipping: gradients have changed.
  void gradients_changed() { clipped_.clear(); }
  int64_t backward_passes() const { return backward_passes_; }

  // --- clipping
  /// Counts a clipping.
  void count_clipping() { ++calls_.clippings; }
  /// Returns the norm of an equal call since the last backward, update or zero_grad; else null.
  const at::Tensor* clipped_norm(
      const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) const;
  void note_clipped(
      const std::vector<at::Tensor>& parameters,
      double max_norm,
      double norm_type,
      const at::Tensor& norm);

  // --- updates
  /// Returns null without fp16.
  GradScaler* scaler() { return scaling_.scaler(); }
  const GradScaler* scaler() const { return scaling_.scaler(); }
  LossScaling& scaling() { return scaling_; }
  /// Reports the begin of an update to the observers, which may refuse it.
  void begin_update(const Optimizer& optimizer);
  /// Calls `update`, unless an observer or an overflow in fp16 forbids it. Returns whether it did.
  /// Collective with fp16 or a NonFinitePolicy.
  bool run_update(const Optimizer& optimizer, const std::function<void()>& update);
  void end_update(const Update& update);
  /// Calls of step() that prepared optimizers have acted on; unlike Calls::steps never reset.
  int64_t updates() const { return updates_; }
  const Calls& calls() const { return calls_; }
  /// Returns the mean of a number over all processes. Collective.
  at::Tensor mean_over_ranks(const at::Tensor& value);

  // --- states that exclude others
  bool is_joining() const { return is_joining_; }
  /// Begins or ends join_uneven_inputs: within it, processes do not agree on overflows.
  void set_joining(bool is_joining);
  void set_offloaded(bool is_offloaded) { is_offloaded_ = is_offloaded; }
  /// Throws ConfigError, in the name of `where`, while a state is offloaded.
  void refuse_offloaded(const char* where) const;

  // --- prepared objects and checkpoints
  /// Restores a saved position.
  void load_position(const AccumulationPosition& saved);
  /// Restores the state before the first micro-step.
  void reset_accumulation();
  /// Restores the state before the first prepare(), except for running scopes.
  void forget_objects();

 private:
  /// One call of clip_grad_norm_, and the norm that it found.
  struct Clipped {
    double max_norm;
    double norm_type;
    std::vector<const void*> parameters;
    at::Tensor norm;
  };

  Group group_;
  std::vector<TrainingStepObserver*> observers_;
  std::vector<std::shared_ptr<TrainingStepObserver>> staying_;  ///< Those of them that stay.
  GradientAccumulationPlugin accumulation_;
  AccumulationPosition position_;
  std::function<bool()> ends_update_;
  LossScaling scaling_;
  std::vector<Clipped> clipped_;  ///< Since the last backward, update or zero_grad.
  int64_t backward_passes_ = 0;
  int64_t updates_ = 0;
  Calls calls_;
  bool any_not_averaged_ = false;
  bool is_offloaded_ = false;
  bool is_joining_ = false;
};

/// RAII scope: this thread's time belongs to `part` of the step.
class LoopPartScope {
 public:
  LoopPartScope(TrainingStep& step, tracking::LoopPart part) : step_(step) {
    step_.notify(&TrainingStepObserver::part_began, part);
  }
  ~LoopPartScope() { step_.notify(&TrainingStepObserver::part_ended); }
  LoopPartScope(const LoopPartScope&) = delete;
  LoopPartScope& operator=(const LoopPartScope&) = delete;

 private:
  TrainingStep& step_;
};

}  // namespace lockstep::internal
