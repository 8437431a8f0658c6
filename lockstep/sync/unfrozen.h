// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// Returns the floating-point parameters that require no gradients: theirs are not averaged. Each
/// once, even if it has several names.
NamedTensors frozen_among(const NamedTensors& parameters);

/// ConfigError, in the name of `where`, if one of them requires gradients now: its gradients would
/// not be averaged, or it would not be updated. `frozen`: from the function above, when the model
/// was prepared. Local: the same on all ranks that train the same parameters.
void refuse_unfrozen(const NamedTensors& frozen, const char* where);

}  // namespace lockstep
