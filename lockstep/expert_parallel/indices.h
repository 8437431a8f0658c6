// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include "lockstep/comm/tensor/attention_interceptor.h"

namespace lockstep::expert_parallel {

/// Returns 0 to count - 1. Within a SequenceScope torch's arange may return positions of a divided
/// sequence. Thread-safe.
inline at::Tensor indices(int64_t count, const at::TensorOptions& options) {
  const comm::AttentionInterceptor::Scope plain(nullptr);
  return at::arange(count, options);
}

}  // namespace lockstep::expert_parallel
