// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// Returns the trained parameters, each once even with two names, without frozen and empty ones.
NamedTensors trainable(const NamedTensors& parameters);

/// Returns the floating-point parameters that require no gradients, each once even with several
/// names.
NamedTensors frozen_among(const NamedTensors& parameters);

/// Throws ConfigError if a parameter of `frozen` requires gradients now. Its gradients would not be
/// averaged, or it would not be updated. `frozen`: the result of frozen_among when the model was
/// prepared. `where` is for the message. Local: equal on all ranks that train the same parameters.
void refuse_unfrozen(const NamedTensors& frozen, const char* where);

}  // namespace lockstep
