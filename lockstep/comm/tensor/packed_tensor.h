// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include "lockstep/base/memory/packed.h"

namespace lockstep {

/// Packs a tensor's dtype, shape and values. It is unpacked on the CPU, contiguous, without its
/// graph. Dense tensors with values only; else ConfigError.
template <>
struct Packed<at::Tensor> {
  static void put(const at::Tensor& tensor, std::string& bytes);
  static at::Tensor take(PackedReader& reader);
};

}  // namespace lockstep
