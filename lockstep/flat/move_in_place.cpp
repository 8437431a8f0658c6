// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/move_in_place.h"

#include <c10/core/GradMode.h>

namespace lockstep::flat {

void move_in_place(const std::vector<at::Tensor>& tensors, at::Device device) {
  const c10::AutoGradMode no_grad(false);
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.device() == device) {
      continue;
    }
    at::Tensor gradient = tensor.requires_grad() ? tensor.grad() : at::Tensor();
    if (gradient.defined()) {
      tensor.mutable_grad().reset();  // It may not be on another device than its tensor.
      gradient = gradient.to(device);
    }
    tensor.set_data(tensor.to(device));
    if (gradient.defined()) {
      tensor.mutable_grad() = gradient;
    }
  }
}

}  // namespace lockstep::flat
