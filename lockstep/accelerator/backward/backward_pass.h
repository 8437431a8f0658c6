// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/backward/backward_runner.h"
#include "lockstep/accelerator/backward/gradient_accumulation.h"
#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/backward/mixed_precision.h"
#include "lockstep/accelerator/backward/replica_check.h"
#include "lockstep/accelerator/backward/unprepared_model_check.h"
#include "lockstep/accelerator/backward/unprepared_update_check.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/offload_states/state_offloader.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"

namespace lockstep {

/// Owns the objects of one Accelerator that work from the loss to the update. Not thread-safe.
struct BackwardPass {
  BackwardPass(
      PreparedObjects& objects,
      LoopState& loop,
      ActiveLoaders& active,
      StateOffloader& offloader,
      LocalSgdScopes& local_sgds)
      : precision(objects.context),
        update_check(objects, loop),
        model_check(objects, loop, local_sgds),
        replicas(objects, loop, active, local_sgds),
        gradients(objects, loop, update_check),
        accumulation(objects, loop, active, gradients, update_check),
        runner(
            {.objects = objects,
             .loop = loop,
             .active = active,
             .accumulation = accumulation,
             .gradients = gradients,
             .precision = precision,
             .offloader = offloader,
             .local_sgds = local_sgds,
             .model_check = model_check,
             .update_check = update_check}) {}

  /// Lets all checks watch the objects that were prepared since the last call.
  void watch_prepared() {
    update_check.watch_prepared();
    runner.watch_prepared();
    model_check.watch_optimizers();
    replicas.watch_prepared();
  }
  /// Forgets all objects, before the registry does.
  void forget() {
    runner.remove_hooks();
    update_check.clear();
    replicas.forget();
    gradients.forget_norms();
    accumulation.forget();
  }

  MixedPrecision precision;
  UnpreparedUpdateCheck update_check;
  UnpreparedModelCheck model_check;
  ReplicaCheck replicas;
  Gradients gradients;
  GradientAccumulation accumulation;
  BackwardRunner runner;
};

}  // namespace lockstep
