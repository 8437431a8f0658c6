// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/comm/named_tensor.h"

namespace lockstep {

/// Throws ConfigError on every rank, naming the first tensor that differs and each side's version
/// of it, unless all ranks hold the same names, shapes, dtypes and requires_grad in the same order.
/// `what`
/// ("parameter") is for the message. Two small all-gathers when all is well. Collective.
void check_same_on_all_ranks(Group& group, const NamedTensors& tensors, const std::string& what);

/// Those of `tensors` that every rank holds alike (name, dtype, shape, memory layout), in the same
/// order on all of them. ConfigError for a name given twice. An all-gather of a number when ranks
/// hold the same, of the names besides when not. Collective.
NamedTensors held_everywhere(Group& group, const NamedTensors& tensors);

/// Gives all ranks rank 0's parameters and buffers, once these were found to be the same kind
/// everywhere; see check_same_on_all_ranks. Returns all of them. Collective.
std::vector<at::Tensor> start_alike(
    Group& group, const NamedTensors& parameters, const NamedTensors& buffers);

}  // namespace lockstep
