// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Returns the memory of a contiguous CPU tensor as bytes, for operations that only move data. The
/// result keeps the tensor alive.
inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(),
      {static_cast<int64_t>(tensor.nbytes())},
      [owner = tensor](void*) {},
      at::TensorOptions(at::kByte));
}

// Exchanges structures of numbers. Each exchange has its own tensors, since an abandoned operation
// may still write to them.

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

/// Holds a rank's arguments of a split; see Transport::split.
struct SplitChoice {
  int64_t color = 0;
  int64_t key = 0;
};

/// Returns the ranks that chose `color`, in their order in the subgroup.
inline std::vector<int> members_of(const std::vector<SplitChoice>& by_rank, int64_t color) {
  std::vector<int> members;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].color == color) {
      members.push_back(static_cast<int>(rank));
    }
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return by_rank[static_cast<size_t>(a)].key < by_rank[static_cast<size_t>(b)].key;
  });
  return members;
}

/// Returns the index of `rank` in `members`, which must contain it.
inline int index_in(const std::vector<int>& members, int rank) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

}  // namespace lockstep::comm
