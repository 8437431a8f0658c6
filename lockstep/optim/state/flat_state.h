// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/optim/state/saved_tensors.h"

namespace lockstep::optim {

/// Does what optimizer_tensors does, for lockstep::optim's optimizers.
NamedTensors flat_tensors(FlatOptimizer& optimizer, const ParameterName& name_of);

/// Checks that `saved` fits the state of `optimizer` with these options, and takes the tensors.
/// Returns a function that applies them. Throws CheckpointError as check_optimizer.
std::function<void()> check_flat_state(
    FlatOptimizer& optimizer,
    const ParameterName& name_of,
    const OptionsOfGroups& options,
    SavedTensors& saved);

}  // namespace lockstep::optim
