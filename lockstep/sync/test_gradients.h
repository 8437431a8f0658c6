// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// As optimizers do by default: drops the gradients.
inline void zero_grad(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad().reset();
  }
}

}  // namespace lockstep
