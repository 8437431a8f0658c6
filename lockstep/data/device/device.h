// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/data/sample/nested.h"

namespace lockstep::data {

/// `tensor` on `device`: itself if it is there already, or undefined. A copy from the host to CUDA
/// that is not to block is made from pinned memory, without which it would block; the values may be
/// used at once by work on the current stream. Every other copy is complete on return.
at::Tensor tensor_to_device(const at::Tensor& tensor, at::Device device, bool non_blocking = false);
/// The tensors with memory that a defined `tensor` is made of: itself, or a sparse one's indices
/// and values.
std::vector<at::Tensor> stored_parts(const at::Tensor& tensor);
/// `tensor` in pinned memory; itself if it is there already, not on the host, or undefined.
at::Tensor pinned_tensor(const at::Tensor& tensor);

/// `value` with all its tensors on `device`: Accelerate's send_to_device.
template <Transferable T>
T to_device(T value, at::Device device, bool non_blocking = false) {
  for_each_tensor(
      value, [&](at::Tensor& tensor) { tensor = tensor_to_device(tensor, device, non_blocking); });
  return value;
}

}  // namespace lockstep::data
