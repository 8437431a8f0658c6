// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/device/device.h"

namespace lockstep::data {

at::Tensor tensor_to_device(const at::Tensor& tensor, at::Device device, bool non_blocking) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (non_blocking && device.is_cuda()) {
    return pinned_tensor(tensor).to(device, /*non_blocking=*/true);
  }
  // Nothing would make the host wait for a copy that does not block, and work on the host reads it.
  return tensor.to(device, /*non_blocking=*/false);
}

std::vector<at::Tensor> stored_parts(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case at::kSparse:
      return {tensor._indices(), tensor._values()};
    case at::kSparseCsr:
    case at::kSparseBsr:
      return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    case at::kSparseCsc:
    case at::kSparseBsc:
      return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
    default:
      return tensor.has_storage() ? std::vector<at::Tensor>{tensor} : std::vector<at::Tensor>{};
  }
}

at::Tensor pinned_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || tensor.is_pinned()) {
    return tensor;
  }
  return tensor.pin_memory();
}

}  // namespace lockstep::data
