// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/named_tensor.h"

namespace lockstep {

/// Those that require no gradients now, though they could: nothing averages theirs. Each once,
/// whatever names it has.
NamedTensors frozen_among(const NamedTensors& parameters);

/// ConfigError, in the name of `where`, for one of them that requires gradients by now: each rank
/// would have its own of it, or none would update it. `frozen`: as above, from when the model was
/// prepared. Local: the same on all ranks, if what they train is.
void refuse_unfrozen(const NamedTensors& frozen, const char* where);

}  // namespace lockstep
