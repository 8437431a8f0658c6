// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

// The checks of an operation's arguments that one rank can do alone. Each throws ConfigError with
// the operation's name, the shape and dtype, and the remedy.

/// Throws unless `tensor` is defined, strided and contiguous, and its memory holds its values.
void check_tensor(Op op, const at::Tensor& tensor);

/// Throws also for a dtype that the ranks cannot reduce with `reduce`.
void check_reducible(Op op, const at::Tensor& tensor, ReduceOp reduce);

/// Throws unless dimension 0 divides into `size` equal parts.
void check_divisible(Op op, const at::Tensor& tensor, int size);

/// Throws unless `rank` is from 0 to size - 1. `what`: "root" or "peer".
void check_rank(Op op, int rank, int size, const char* what);

/// Throws unless `output` has the shape of `input` with dimension 0 multiplied by `times` and
/// divided by `parts`.
void check_output(Op op, const at::Tensor& output, const at::Tensor& input, int times, int parts);

/// Throws unless the root's `input` is `size` outputs along dimension 0.
void check_scatter_input(const at::Tensor& output, const at::Tensor& input, int size);

}  // namespace lockstep::comm
