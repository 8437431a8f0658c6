// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// Throws ConfigError on every rank, naming the first tensor that differs and each side's version
/// of it, unless all ranks have the same names, shapes, dtypes and requires_grad in the same order.
/// `what` ("parameter") is for the message. Costs two small all-gathers without a difference.
/// Collective.
void check_same_on_all_ranks(Group& group, const NamedTensors& tensors, const std::string& what);

/// Returns those of `tensors` that are alike on every rank (name, dtype, shape, memory layout), in
/// the same order on all of them. Throws ConfigError for a repeated name. Costs an all-gather of a
/// number if ranks have the same, else also of the names. Collective.
NamedTensors held_everywhere(Group& group, const NamedTensors& tensors);

/// Broadcasts rank 0's parameters and buffers, after checking that all ranks have the same ones;
/// see check_same_on_all_ranks. Returns all of them. Collective.
std::vector<at::Tensor> start_alike(
    Group& group, const NamedTensors& parameters, const NamedTensors& buffers);

}  // namespace lockstep
