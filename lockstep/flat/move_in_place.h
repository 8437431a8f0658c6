// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::flat {

/// Moves the memory of `tensors`, and of their gradients, to `device`: they are the same tensors
/// after it, so whoever holds them (a module, an optimizer, another name of a tied parameter) has
/// them there. As torch's Module::to. Tensors that are there already stay as they are.
void move_in_place(const std::vector<at::Tensor>& tensors, at::Device device);

}  // namespace lockstep::flat
