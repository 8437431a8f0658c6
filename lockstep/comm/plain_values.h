// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include <ATen/ops/empty.h>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

// Exchange of structures of numbers. Each exchange has its own tensors, since an abandoned
// operation may still write to them.

template <typename T>
at::Tensor bytes_of_value(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof(T))}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &value, sizeof(T));
  return bytes;
}

template <typename T>
std::vector<T> values_in(const at::Tensor& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(bytes.nbytes() / sizeof(T));
  std::memcpy(values.data(), bytes.const_data_ptr(), bytes.nbytes());
  return values;
}

/// Gathers `mine` from all ranks of `transport`, in rank order. Collective.
template <typename T>
std::vector<T> exchange(Transport& transport, const T& mine, Milliseconds timeout) {
  const int64_t bytes = int64_t{sizeof(T)} * transport.size();
  const at::Tensor all = at::empty({bytes}, at::kByte);
  transport.start({.op = Op::kAllGather, .input = bytes_of_value(mine), .output = all}, timeout)
      ->wait(timeout);
  return values_in<T>(all);
}

}  // namespace lockstep::comm
