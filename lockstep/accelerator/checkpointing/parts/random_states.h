// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::internal {

/// Returns the state of torch's default CPU generator.
at::Tensor random_state();
/// Returns it as "cpu", and with a CUDA `device` the state of its default generator as "cuda".
NamedTensors random_states(at::Device device);

/// Checks random states. `stream` 0: the random numbers continue as saved. Else: a separate stream,
/// derived from the saved state and `stream`, for processes that did not exist when it was saved. A
/// state saved on a CPU leaves that of a CUDA `device` unchanged, and vice versa.
std::function<void()> check_random_state(
    const NamedTensors& saved, int stream, const std::string& path, at::Device device = at::kCPU);

}  // namespace lockstep::internal
