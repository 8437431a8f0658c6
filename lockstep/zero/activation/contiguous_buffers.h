// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// Equal buffers for tensors in one contiguous allocation. The first tensor allocates it. A buffer
/// is free again after the last reference to its tensor.
///
/// Memory: `count` times the first tensor's bytes, rounded up to 64. Thread-safe. Work on a tensor
/// and on the next one in the same buffer must be on one stream, or on streams that wait.
class ContiguousBuffers : public std::enable_shared_from_this<ContiguousBuffers> {
 public:
  /// `pinned`: whether host memory is page-locked; `device`: where the memory is.
  ContiguousBuffers(int64_t count, at::Device device, bool pinned)
      : taken_(static_cast<size_t>(count)), device_(device), pinned_(pinned) {}
  ~ContiguousBuffers();
  ContiguousBuffers(const ContiguousBuffers&) = delete;
  ContiguousBuffers& operator=(const ContiguousBuffers&) = delete;

  /// Returns an uninitialized tensor [numel] of `dtype`. Throws ConfigError if no buffer is free,
  /// or if the tensor is too large while others are in use; if none is in use the memory is
  /// reallocated.
  at::Tensor take(int64_t numel, at::ScalarType dtype);

 private:
  void give_back(size_t entry);
  void make_room(int64_t bytes);
  void wait_for_all() const noexcept;

  std::mutex mutex_;
  at::Tensor memory_;
  int64_t slot_bytes_ = 0;
  std::vector<bool> taken_;
  at::Device device_;
  bool pinned_;
};

}  // namespace lockstep
