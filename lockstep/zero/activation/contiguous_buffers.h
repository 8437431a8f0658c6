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

/// Equal places for tensors, side by side in one piece of memory, which is allocated with the first
/// tensor and stays. A place is free again when the last use of its tensor has gone.
///
/// Memory: `count` times the first tensor's bytes, rounded up to 64. Thread-safe. Work on a tensor
/// and on the next one in its place is to be of one stream, or of streams that wait.
class ContiguousBuffers : public std::enable_shared_from_this<ContiguousBuffers> {
 public:
  /// `pinned` says whether memory of the host is to be so; `device` is where the memory lies.
  ContiguousBuffers(int64_t count, at::Device device, bool pinned)
      : taken_(static_cast<size_t>(count)), device_(device), pinned_(pinned) {}
  ~ContiguousBuffers();
  ContiguousBuffers(const ContiguousBuffers&) = delete;
  ContiguousBuffers& operator=(const ContiguousBuffers&) = delete;

  /// [numel] of `dtype`, not initialized. ConfigError if none is free, and if it needs more than a
  /// place has while others are taken; where none is taken the memory is allocated anew.
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
