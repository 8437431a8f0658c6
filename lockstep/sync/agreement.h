// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// Throws ConfigError on every rank if tensors differ between ranks. Names, shapes, dtypes,
/// requires_grad and order must be equal. The error names the first tensor that differs, on rank 0
/// and on another rank. `what` ("parameter") is for the message. Costs two small all-gathers
/// without a difference. Collective.
void check_same_on_all_ranks(Group& group, const NamedTensors& tensors, const std::string& what);

/// Returns those of `tensors` that every rank has, in the same order on all ranks. Names, dtypes,
/// shapes and memory layouts must be equal. Throws ConfigError for a repeated name. Costs an
/// all-gather of a number if ranks have the same tensors, else also one of the names. Collective.
NamedTensors tensors_on_all_ranks(Group& group, const NamedTensors& tensors);

/// Broadcasts rank 0's parameters and buffers, after checking that all ranks have the same ones;
/// see check_same_on_all_ranks. Returns all of them. Collective.
std::vector<at::Tensor> broadcast_initial_values(
    Group& group, const NamedTensors& parameters, const NamedTensors& buffers);

}  // namespace lockstep
