// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include "lockstep/base/memory/packed.h"

namespace lockstep {

/// Packs a tensor's dtype, shape and values. The unpacked tensor is on the CPU, contiguous, without
/// a graph. Throws ConfigError unless the tensor is dense and has values.
template <>
struct Packed<at::Tensor> {
  static void put(const at::Tensor& tensor, std::string& bytes);
  static at::Tensor take(PackedReader& reader);
};

}  // namespace lockstep
