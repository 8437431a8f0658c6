// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/sync/comm_hook.h"

namespace lockstep {

/// ConfigError if `state` has a tensor that is not among `known` or is shaped differently.
void check_hook_tensors(const CommHookState& state, const NamedTensors& known);

/// Copies `state` into the memory of `known`, by name; tensors `state` lacks are zeroed.
/// Throws as check_hook_tensors, with nothing changed.
void copy_hook_tensors(const CommHookState& state, const NamedTensors& known);

/// The tensor of that name, or nullptr.
const at::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name);

}  // namespace lockstep
