// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

namespace lockstep::comm {

/// The memory of a contiguous tensor on the CPU as bytes, for what only moves data; keeps it
/// alive.
inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(),
      {static_cast<int64_t>(tensor.nbytes())},
      [owner = tensor](void*) {},
      at::TensorOptions(at::kByte));
}

}  // namespace lockstep::comm
