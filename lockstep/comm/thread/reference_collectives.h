// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Reduces `inputs`, one for each rank, by plain tensor operations. It is the slow reference of
/// every other reduction. The order of additions is fixed: rank 0 first. Returns a new tensor,
/// float32 for float16 and bfloat16.
at::Tensor reduce_in_order(const std::vector<at::Tensor>& inputs, ReduceOp op);

/// Executes one collective for all ranks. `by_rank`: each rank's operation, with equal
/// fingerprints; cleared afterwards, which releases the tensors.
void perform_collective(std::vector<Collective>& by_rank);

}  // namespace lockstep::comm
