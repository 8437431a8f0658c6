// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/comm/group.h"

/// Parts of autograd functions that communicate in forward and backward.
namespace lockstep::context_parallel {

/// Keeps `group` for the backward of a function.
void keep_group(torch::autograd::AutogradContext& context, const Group& group);
/// Returns the group that the forward has kept.
Group group_of(torch::autograd::AutogradContext& context);

/// Throws ConfigError, in the name of `where`, in a backward with create_graph.
void refuse_create_graph(const char* where);

}  // namespace lockstep::context_parallel
