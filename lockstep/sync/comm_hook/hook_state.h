// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/sync/comm_hook/comm_hook.h"

namespace lockstep {

/// Throws ConfigError if `state` has a tensor that is not in `known`, or has another shape.
void check_hook_tensors(const CommHookState& state, const NamedTensors& known);

/// Copies `state` into the tensors of `known`, by name; tensors that `state` lacks are zeroed.
/// Throws as check_hook_tensors, before any change.
void copy_hook_tensors(const CommHookState& state, const NamedTensors& known);

/// Returns the tensor of that name, or nullptr.
const at::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name);

}  // namespace lockstep
