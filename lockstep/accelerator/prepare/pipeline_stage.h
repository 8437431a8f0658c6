// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/accelerator/prepare/preparer.h"
#include "lockstep/accelerator/setup/run_context.h"

namespace lockstep::internal {

class TrainingStep;

/// Gives the tensors of a pipeline's stage their names in the full model, its tied parameters equal
/// values, and its losses the scale of fp16. Does nothing for another model in a job without
/// pp. Throws ConfigError, on all processes of the pipeline, for a model that does not fit the
/// mesh, for a second one, for ZeRO 3, and if only some stages have trained parameters. Collective.
void prepare_stage(
    const RunContext& context,
    GivenModel& model,
    bool is_first,
    const std::shared_ptr<TrainingStep>& step);

}  // namespace lockstep::internal
