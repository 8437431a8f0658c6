// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep::flat {

/// Overwrites `tensors` with root's, by a few large broadcasts. Tensors of one dtype are copied
/// into a buffer of at most `cap_bytes`, broadcast, and copied back. Shapes and dtypes must agree
/// on all ranks (compare them first). Autograd does not record it. Collective.
void broadcast_coalesced(
    Group& group,
    const std::vector<at::Tensor>& tensors,
    int root = 0,
    int64_t cap_bytes = int64_t{25} << 20);

/// Reduces each of `tensors` in place over the ranks, by a few large all-reduces. It sends and
/// reduces float16 and bfloat16 as float32, and rounds once at the end. kAvg needs floating point
/// tensors. Memory: one buffer at a time. Autograd does not record it. Collective.
void all_reduce_coalesced(
    Group& group,
    const std::vector<at::Tensor>& tensors,
    ReduceOp op = ReduceOp::kSum,
    int64_t cap_bytes = int64_t{25} << 20);

}  // namespace lockstep::flat
