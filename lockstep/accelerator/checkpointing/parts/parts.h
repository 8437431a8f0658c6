// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "lockstep/accelerator/checkpointing/checkpoint_part.h"
#include "lockstep/accelerator/diagnostics/finite_guard.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/epoch_counter.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"

namespace lockstep::internal {

/// The parts of a checkpoint of an Accelerator. RegisteredObjects and ProgramHooks are parts, too,
/// and an engine adds one. The arguments must outlive the part.
std::unique_ptr<CheckpointPart> models_part(const PreparedObjects& objects);
std::unique_ptr<CheckpointPart> own_buffers_part(const PreparedObjects& objects);
std::unique_ptr<CheckpointPart> optimizers_part(
    PreparedObjects& objects, const LocalSgdScopes& local_sgds);
std::unique_ptr<CheckpointPart> local_sgd_steps_part(LocalSgdScopes& local_sgds);
std::unique_ptr<CheckpointPart> comm_hooks_part(const PreparedObjects& objects);
std::unique_ptr<CheckpointPart> loaders_part(
    const PreparedObjects& objects, const ActiveLoaders& active, const EpochCounter& epochs);
std::unique_ptr<CheckpointPart> epochs_part(const PreparedObjects& objects, EpochCounter& epochs);
std::unique_ptr<CheckpointPart> random_states_part(at::Device device);
std::unique_ptr<CheckpointPart> loss_scale_part(TrainingStep& step);
std::unique_ptr<CheckpointPart> schedulers_part(const PreparedObjects& objects);
std::unique_ptr<CheckpointPart> accumulation_part(
    PreparedObjects& objects, TrainingStep& step, FiniteGuard& finite);

}  // namespace lockstep::internal
