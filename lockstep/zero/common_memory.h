// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::zero {

/// Throws ConfigError if a tensor of `moved` shares elements with another tensor of `all`. The
/// error names both tensors. Tensors of `moved` will get new memory, so a write to one would no
/// longer be seen in the other. One tensor with several names is accepted, and so are disjoint
/// parts of one storage.
///
/// Local: ranks with equal tensors get equal results. Cost: a sort, and a byte for each element
/// between two tensors of one storage that interleave (columns of a matrix). Thread-safe.
void refuse_common_memory(const NamedTensors& moved, const NamedTensors& all);

}  // namespace lockstep::zero
