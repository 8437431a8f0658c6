// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/accelerator/prepare/divided_experts.h"
#include "lockstep/accelerator/prepare/preparer.h"
#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/tensor_parallel/tensor_parallel.h"

namespace lockstep::internal {

/// Divides a model among the processes of a tp line, after they have got rank 0's values, and
/// compares its result on the example of the options before and after. Returns null without tp.
/// `is_first`: no other model is prepared. `experts`: those that other processes divide, which the
/// plan may not name; may be null. Throws ConfigError on all processes if the results
/// differ, and for a second model. Collective.
std::shared_ptr<tensor_parallel::TensorParallel> divide_model(
    const RunContext& context,
    const GivenModel& model,
    bool is_first,
    const DividedExperts* experts);

/// Throws ConfigError for an optimizer whose update of an element depends on others of its
/// parameter. `because`: why it cannot have them, a clause.
void expect_elementwise(torch::optim::Optimizer& optimizer, const char* because);

}  // namespace lockstep::internal
