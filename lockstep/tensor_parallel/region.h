// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

/// Operations at the borders of layers that ranks divide, with their gradients. All are collective
/// in one of the two directions, and do nothing in a group of one. Modelled on Megatron-LM's
/// mappings.
///
/// Cost: one operation of the tensor's bytes in the stated direction.
namespace lockstep::tensor_parallel {

/// Returns `input`, which is equal on all ranks. Its gradient is the sum over the ranks: one
/// all_reduce.
at::Tensor copy_to_ranks(const at::Tensor& input, const Group& group);

/// Returns the sum over the ranks, by one all_reduce. Each rank's gradient is the result's.
at::Tensor sum_over_ranks(const at::Tensor& partial, const Group& group);

/// Concatenates the ranks' columns (the last dimension), by one all_gather. The gradient is the own
/// columns of the result's, which is equal on all ranks.
at::Tensor gather_columns(const at::Tensor& own, const Group& group);

/// Concatenates the ranks' parts of dimension `dim`, by one all_gather. The gradient is the own
/// part of the sum over the ranks: one reduce_scatter.
at::Tensor gather_sequence(const at::Tensor& own, int64_t dim, const Group& group);

/// Returns the own part, in dimension `dim`, of the sum over the ranks, by one reduce_scatter. The
/// gradient is gathered: one all_gather. Throws ConfigError unless the ranks divide the dimension.
at::Tensor scatter_sum(const at::Tensor& partial, int64_t dim, const Group& group);

/// Returns the own part of `input`, which is equal on all ranks. The gradient is gathered: one
/// all_gather. Throws ConfigError unless the ranks divide the dimension.
at::Tensor own_part(const at::Tensor& input, int64_t dim, const Group& group);

}  // namespace lockstep::tensor_parallel
