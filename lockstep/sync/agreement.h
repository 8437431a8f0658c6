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

}  // namespace lockstep
