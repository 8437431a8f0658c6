// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// The norms of the last clip_grad_norm_, before and after; tensors, so that no call waits for a
/// device.
struct GradientNorms {
  at::Tensor before;
  at::Tensor after;
};

}  // namespace lockstep
