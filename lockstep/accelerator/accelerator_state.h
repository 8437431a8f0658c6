// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/backward/backward_runner.h"
#include "lockstep/accelerator/backward/gradient_accumulation.h"
#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/backward/mixed_precision.h"
#include "lockstep/accelerator/checkpointing/checkpointer.h"
#include "lockstep/accelerator/diagnostics/finite_guard.h"
#include "lockstep/accelerator/diagnostics/flight_step.h"
#include "lockstep/accelerator/diagnostics/loss_watch.h"
#include "lockstep/accelerator/diagnostics/missing_gradient_check.h"
#include "lockstep/accelerator/diagnostics/replica_check.h"
#include "lockstep/accelerator/diagnostics/step_recorder.h"
#include "lockstep/accelerator/diagnostics/tensor_line_check.h"
#include "lockstep/accelerator/diagnostics/unprepared_model_check.h"
#include "lockstep/accelerator/diagnostics/unprepared_update_check.h"
#include "lockstep/accelerator/join/uneven_inputs.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/epoch_counter.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/offload_states/state_offloader.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/accelerator/trackers.h"
#include "lockstep/accelerator/zero_setup/zero_init.h"

namespace lockstep {

/// The objects that an Accelerator delegates to, in order of their dependencies.
struct Accelerator::State {
  explicit State(internal::RunContext run_context)
      : context(std::move(run_context)),
        step(std::make_shared<internal::TrainingStep>(
            context.options, context.precision == Precision::kFP16, context.group)),
        active(std::make_shared<internal::ActiveLoaders>(
            context.group, context.options.rng_types, step)),
        objects(context),
        zero_init(context.mesh.replicas, context.device),
        preparer(objects, step, active, zero_init),
        offloader(objects, *step),
        finite(std::make_shared<internal::FiniteGuard>(
            context.options.non_finite, step->scaler() != nullptr, context.group)),
        losses(std::make_shared<internal::LossWatch>(
            context.options.non_finite == NonFinitePolicy::kIgnore, context.mesh.replicas)),
        model_check(objects, *step, local_sgds),
        missing_gradients(objects),
        update_check(objects, *step),
        tensor_lines(objects),
        replicas(objects, *step, *losses, *active, local_sgds),
        precision(context),
        gradients(objects, *step),
        accumulation(objects, *step, *active, gradients),
        backward(objects, *step, gradients, local_sgds),
        uneven_inputs(objects, *step, *active, gradients, local_sgds),
        collectives(context.mesh, context.debug, *active),
        trackers(context),
        epochs(std::make_shared<internal::EpochCounter>([this] { return work(); })),
        checkpointer(
            objects,
            *step,
            *finite,
            *active,
            *epochs,
            local_sgds,
            gradients,
            replicas,
            [this] { end_training(); }),
        step_recorder(context) {
    // Those that refuse a loss come before those that count it.
    step->add_observer(offloader);
    step->add_observer(model_check);
    step->add_observer(missing_gradients);
    step->add_observer(update_check);
    step->add_observer(replicas);
    step->add_observer(tensor_lines);
    step->add_observer(finite);
    step->add_observer(losses);
    step->add_observer(*active);
    step->add_observer(precision);
    step->add_observer(std::make_shared<internal::FlightStep>());
    active->set_between_batches([this] { checkpointer.between_batches(); });
    active->set_before_pass([this] { checkpointer.resume_if_requested(/*in_epochs=*/false); });
    ++living;
  }
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// Returns `given`, or the updates of the first prepared optimizer.
  int64_t step_or_updates(std::optional<int64_t> given) const;

  /// Returns the work of the program so far, for EpochCounter.
  internal::EpochCounter::Work work() const;

  void end_training();

  /// Throws ConfigError for a LocalSgd without finish(), and warns of a loop without an update.
  void expect_finished_loop() const;

  void start_recording() {
    if (step_recorder.start()) {
      step->add_observer(step_recorder.active());
    }
  }

  internal::RunContext context;
  std::shared_ptr<internal::TrainingStep> step;
  std::shared_ptr<internal::ActiveLoaders> active;
  internal::LocalSgdScopes local_sgds;
  internal::PreparedObjects objects;
  internal::ZeroInit zero_init;
  internal::Preparer preparer;
  internal::StateOffloader offloader;
  std::shared_ptr<internal::FiniteGuard> finite;
  std::shared_ptr<internal::LossWatch> losses;
  internal::UnpreparedModelCheck model_check;
  internal::MissingGradientCheck missing_gradients;
  internal::UnpreparedUpdateCheck update_check;
  internal::TensorLineCheck tensor_lines;
  internal::ReplicaCheck replicas;
  internal::MixedPrecision precision;
  internal::Gradients gradients;
  internal::GradientAccumulation accumulation;
  internal::BackwardRunner backward;
  internal::UnevenInputs uneven_inputs;
  internal::Collectives collectives;
  internal::Trackers trackers;
  std::shared_ptr<internal::EpochCounter> epochs;
  internal::Checkpointer checkpointer;
  internal::ActiveStepRecorder step_recorder;
  bool triggered = false;

  /// The Accelerators of this process: with the last one it leaves the job.
  static inline std::atomic<int> living = 0;
};

}  // namespace lockstep
