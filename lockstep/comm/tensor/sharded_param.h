// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

namespace lockstep::comm {

/// Marks tensors that are unsharded when an operation uses them; see
/// zero/coordinator/flat_param_buffer.h. torch has the key for deferred initialisation, but does
/// not use it. It is defined here since transports, which use pointers, must recognise such
/// tensors.
constexpr c10::DispatchKey kShardedParamKey = c10::DispatchKey::DeferredInit;

/// Returns whether the memory of `tensor` may be freed: it must be used through operations, not
/// pointers.
inline bool is_sharded_param(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kShardedParamKey);
}

}  // namespace lockstep::comm
