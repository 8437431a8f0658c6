// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::zero {

/// Throws ConfigError, naming both, if one of `moved`, which will get new memory, shares elements
/// with another tensor of `all`: a write to one would no longer be seen in the other. One tensor
/// with several names is accepted, and so are disjoint parts of one storage.
///
/// Local; if the tensors are alike on all ranks, so is the result. Cost: a sort; if two tensors of
/// one storage interleave (columns of a matrix), a byte for each element between. Thread-safe.
void refuse_common_memory(const NamedTensors& moved, const NamedTensors& all);

}  // namespace lockstep::zero
