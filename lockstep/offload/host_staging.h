// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace lockstep::offload {

/// Brings tensors of a device to the host, and what the host made of them back, on a stream of its
/// own: beside what the host and the device's other streams do. Tensors of the CPU stay themselves.
///
/// Memory: two slots on the host, each as large as the most that was fetched at once; pinned, if
/// wanted and the device is a CUDA one. Thread safety: none.
class HostStaging {
 public:
  static constexpr size_t kSlots = 2;

  explicit HostStaging(bool pinned) : pinned_(pinned) {}

  /// What follows comes behind what the current stream of `device` has been told so far.
  void begin(at::Device device);
  /// Starts to bring `tensors`, dense ones. What the slot held before must have been waited for,
  /// and sent back if it was to be. What it gives is there after `wait`.
  std::vector<at::Tensor> fetch(size_t slot, const std::vector<at::Tensor>& tensors);
  void wait(size_t slot);
  /// Starts to copy `from`, of a slot, to `to`, on the device. Nothing where they are the same.
  void send_back(const at::Tensor& to, const at::Tensor& from);
  /// What the current stream is told from now on comes behind all that was sent back.
  void finish();

  int64_t memory_bytes() const;

 private:
  struct Transfer {
    at::Tensor memory;
    std::optional<c10::Event> there;
  };

  bool pinned_;
  std::optional<c10::Stream> stream_;
  std::array<Transfer, kSlots> slots_;
};

}  // namespace lockstep::offload
