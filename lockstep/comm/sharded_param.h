// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

namespace lockstep::comm {

/// What marks tensors whose values come when an operation touches them; zero/coordinator/flat_param_buffer.h
/// makes them. torch has the key for deferred initialisation, which it does not do. It stands here
/// since transports, which read and write through pointers, must tell such tensors.
constexpr c10::DispatchKey kShardedParamKey = c10::DispatchKey::DeferredInit;

/// Whether the memory of `tensor` may be elsewhere: it is reached by operations, not by pointers.
inline bool is_sharded_param(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kShardedParamKey);
}

}  // namespace lockstep::comm
