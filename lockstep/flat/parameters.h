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

/// Throws ConfigError if a tensor of `moved` shares elements with another tensor of `all`. The
/// error names both tensors. Tensors of `moved` will get new memory, so a write to one would no
/// longer be seen in the other. One tensor with several names is accepted, and so are disjoint
/// parts of one storage.
///
/// Local: ranks with equal tensors get equal results. Cost: a sort, and a byte for each element
/// between two tensors of one storage that interleave (columns of a matrix). Thread-safe.
void refuse_common_memory(const NamedTensors& moved, const NamedTensors& all);

}  // namespace lockstep
