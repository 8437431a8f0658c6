// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::flat {

/// Moves the memory of `tensors`, and of their gradients, to `device`, as torch's Module::to. They
/// remain the same tensors for all holders (a module, an optimizer, another name of a tied
/// parameter). Tensors on `device` are unchanged.
void move_in_place(const std::vector<at::Tensor>& tensors, at::Device device);

}  // namespace lockstep::flat
