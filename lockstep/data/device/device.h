// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/data/sample/nested.h"

namespace lockstep::data {

/// Returns `tensor` on `device`: itself if it is already there, or undefined.
///
/// A non-blocking copy from the host to CUDA uses pinned memory, without which it would block; work
/// on the current stream may use the values at once. Every other copy is complete on return.
at::Tensor tensor_to_device(const at::Tensor& tensor, at::Device device, bool non_blocking = false);
/// Returns the strided tensors of a defined `tensor`: itself, or the indices and values of a sparse
/// one.
std::vector<at::Tensor> stored_parts(const at::Tensor& tensor);
/// Returns `tensor` in pinned memory; itself if it is already pinned, not on the host, or
/// undefined.
at::Tensor pinned_tensor(const at::Tensor& tensor);

/// Returns `value` with all its tensors on `device`: Accelerate's send_to_device.
template <Transferable T>
T to_device(T value, at::Device device, bool non_blocking = false) {
  for_each_tensor(
      value, [&](at::Tensor& tensor) { tensor = tensor_to_device(tensor, device, non_blocking); });
  return value;
}

}  // namespace lockstep::data
