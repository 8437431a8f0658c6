// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/tracking/steps/loop_timer.h"

namespace lockstep {

class Optimizer;

}  // namespace lockstep

namespace lockstep::internal {

/// A loss whose backward begins.
struct GivenLoss {
  const at::Tensor& loss;                      ///< One number, not divided or scaled yet.
  std::optional<double> count = std::nullopt;  ///< Of backward(loss_sum, count).
  bool by_program = false;                     ///< The program calls backward itself.
};

/// An update by an optimizer that has just ended.
struct Update {
  const Optimizer& optimizer;
  int64_t step;  ///< Updates of this optimizer so far.
  bool skipped;
};

/// Observes a training loop without taking part in its arithmetic.
///
///     class CountLosses final : public TrainingStepObserver {
///      public:
///       void loss_given(const GivenLoss&) override { ++losses; }
///       int losses = 0;
///     };
///     training_step.add_observer(count_losses);
///
/// A TrainingStep calls its observers in the order in which they were added. The functions run on
/// the thread of the loop; those about backward and about parts also on autograd's threads. An
/// exception propagates to the program, and later observers do not get the event; a function says
/// what else it prevents. All ranks get those that are called collective, so that an observer may
/// communicate in them. TrainingStep::add_observer says how long an observer must live. Cost: a
/// virtual call.
class TrainingStepObserver {
 public:
  virtual ~TrainingStepObserver() = default;

  // --- prepare
  /// A model will be prepared: before other hooks into its backward exist. `parameters`: with names
  /// that are unique among all models.
  virtual void model_given(const NamedTensors& /*parameters*/) {}
  /// prepare() has ended. Collective.
  virtual void objects_prepared() {}
  /// All prepared objects will be forgotten.
  virtual void objects_forgotten() {}
  /// All ranks have changed parameters or dropped gradients in the same way, outside of an update.
  virtual void equal_changes_made() {}

  // --- a step
  /// accumulate() begins a micro-step. An exception prevents it.
  virtual void before_micro_step() {}
  virtual void micro_step_began() {}
  /// A loss is passed to backward or scale_loss. An exception prevents its backward.
  virtual void loss_given(const GivenLoss& /*given*/) {}
  /// A backward begins, also one of a loss that the Accelerator has not seen.
  virtual void backward_began() {}
  /// The gradients of a given loss are computed and, if they are due, averaged.
  virtual void backward_ended() {}
  /// A backward has thrown.
  virtual void backward_abandoned() noexcept {}
  /// step(closure) of a prepared optimizer begins. An exception prevents it.
  virtual void before_closure() {}
  /// step() of a prepared optimizer begins. An exception prevents the update.
  virtual void before_update(const Optimizer& /*optimizer*/) {}
  /// The optimizer's gradients are complete: before its update, or after that of step(closure).
  virtual void gradients_complete(const Optimizer& /*optimizer*/) {}
  /// Returns whether an update may use the gradients. Collective if it must be equal on all ranks.
  virtual bool may_update(int64_t /*step*/) { return true; }
  /// An update was skipped since gradients overflowed at a loss scale of 1 or less.
  virtual void overflowed_unscaled(const Optimizer& /*optimizer*/) {}
  virtual void after_update(const Update& /*update*/) {}
  /// An engine has divided a loss into parts of its update's mean loss: this is one.
  virtual void loss_part_given(const at::Tensor& /*part*/) {}

  // --- measurements
  /// The thread's time belongs to a part of the step from now on, until the matching part_ended.
  virtual void part_began(tracking::LoopPart /*part*/) noexcept {}
  virtual void part_ended() noexcept {}
  /// A loop waits for a batch of a prepared loader, until batch_began or loader_pass_ended.
  virtual void batch_requested() {}
  /// `rows`: of this rank, 0 for a loop within another.
  virtual void batch_began(int64_t /*rows*/) {}
  /// The body of the outermost loop over a loader has ended.
  virtual void body_ended() {}
  virtual void loader_pass_began(const void* /*loader*/, bool /*outermost*/) {}
  virtual void loader_pass_ended(const void* /*loader*/, bool /*outermost*/, bool /*trained*/) {}
};

}  // namespace lockstep::internal
