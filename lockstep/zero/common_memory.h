// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/named_tensor.h"

namespace lockstep::zero {

/// Throws ConfigError, naming both, if one of `moved`, which will get other memory, has elements in
/// common with another of `all`: what is written to one would show in the other no more. One tensor
/// by several names is fine, and so are parts of one storage that do not overlap.
///
/// Local; of tensors that are alike on all ranks the same on all. Cost: a sort; where two of one
/// storage interleave (columns of a matrix), a byte for each element between. Thread safety: safe.
void refuse_common_memory(const NamedTensors& moved, const NamedTensors& all);

}  // namespace lockstep::zero
