// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep::internal {

/// Works as Group::all_gather, and autograd records it: the gradient of this rank's rows is the sum
/// of all ranks' gradients of them. Blocks. Collective, and so is its backward.
at::Tensor differentiable_gather(const Group& group, const at::Tensor& tensor);

/// Returns the reduction as a new tensor, and autograd records it: the gradient of `tensor` is the
/// sum of all ranks' gradients of the result, divided by the ranks for kAvg. For kMin and kMax the
/// ranks that have the result share it equally. Throws ConfigError for kProduct. Blocks.
/// Collective, and so is its backward.
at::Tensor differentiable_reduce(const Group& group, const at::Tensor& tensor, ReduceOp op);

}  // namespace lockstep::internal
