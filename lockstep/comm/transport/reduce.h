// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Reduces `count` elements of each of `sources`, in their order, and writes the result to each
/// target.
///
/// A target may be a source. float16 and bfloat16 are accumulated in float32 and rounded once;
/// integers wrap. The fixed order makes the result bit-identical on all ranks.
///
/// Cost: one pass over memory, in chunks that stay in the first-level cache; AVX2 if the processor
/// has it. Allocates nothing.
void reduce(
    c10::ScalarType dtype,
    ReduceOp op,
    c10::ArrayRef<const void*> sources,
    c10::ArrayRef<void*> targets,
    int64_t count);

}  // namespace lockstep::comm
