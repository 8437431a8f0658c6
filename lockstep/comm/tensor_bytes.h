// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

namespace lockstep::comm {

/// Returns the memory of a contiguous CPU tensor as bytes, for operations that only move data;
/// keeps it alive.
inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(),
      {static_cast<int64_t>(tensor.nbytes())},
      [owner = tensor](void*) {},
      at::TensorOptions(at::kByte));
}

}  // namespace lockstep::comm
