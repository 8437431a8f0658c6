// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/backward/backward_pass.h"
#include "lockstep/accelerator/checkpointing/checkpointer.h"
#include "lockstep/accelerator/join/uneven_inputs.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/epoch_counter.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/loop/step_recorder.h"
#include "lockstep/accelerator/offload_states/state_offloader.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/accelerator/step_recording.h"
#include "lockstep/accelerator/trackers.h"
#include "lockstep/accelerator/zero_setup/zero_init.h"

namespace lockstep {

/// The objects that an Accelerator delegates to, in order of their dependencies.
struct Accelerator::State {
  explicit State(RunContext run_context)
      : context(std::move(run_context)),
        loop(new_loop_state(context.options, context.precision == Precision::kFP16, context.group)),
        active(std::make_shared<ActiveLoaders>(context.group, context.options.rng_types)),
        objects(context),
        zero_init(context.group, context.device),
        preparer(objects, loop, active, zero_init),
        offloader(objects, *loop),
        backward(objects, *loop, *active, offloader, local_sgds),
        uneven_inputs(objects, *loop, backward.gradients, local_sgds),
        collectives(context.group, context.debug, *active),
        trackers(context),
        epochs(std::make_shared<EpochCounter>([this] { return work(); })),
        checkpointer(
            objects,
            *loop,
            *active,
            *epochs,
            local_sgds,
            backward.gradients,
            backward.replicas,
            [this] { end_training(); }),
        recording(context) {
    active->set_between_batches([this] { checkpointer.between_batches(); });
    active->set_before_pass([this] { checkpointer.resume_if_requested(/*in_epochs=*/false); });
  }
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// Returns `step`, or the updates of the first prepared optimizer.
  int64_t step_or_updates(std::optional<int64_t> step) const;

  /// Returns the work of the program so far, for EpochCounter.
  EpochCounter::Work work() const;

  void end_training();

  /// Throws ConfigError for a LocalSgd without finish(), and warns of a loop without an update.
  void expect_finished_loop() const;

  void start_recording() {
    recording.start();
    loop->recorder = recording.recorder();
    active->set_recorder(loop->recorder);
  }

  RunContext context;
  std::shared_ptr<LoopState> loop;
  std::shared_ptr<ActiveLoaders> active;
  LocalSgdScopes local_sgds;
  PreparedObjects objects;
  ZeroInit zero_init;
  Preparer preparer;
  StateOffloader offloader;
  BackwardPass backward;
  UnevenInputs uneven_inputs;
  Collectives collectives;
  Trackers trackers;
  std::shared_ptr<EpochCounter> epochs;
  Checkpointer checkpointer;
  StepRecording recording;
  bool triggered = false;
};

}  // namespace lockstep
