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

/// Copies device tensors to the host and back, on a separate stream, in parallel with other work.
/// CPU tensors are used directly.
///
/// Memory: two transfer buffers on the host, each as large as the largest fetch; pinned, if
/// requested and the device is CUDA.
class HostStaging {
 public:
  static constexpr size_t kSlots = 2;

  explicit HostStaging(bool pinned) : pinned_(pinned) {}

  /// Makes later copies wait for the present work of `device`'s current stream.
  void begin(at::Device device);
  /// Starts to copy `tensors`, which must be dense, to the host. The buffer's earlier contents must
  /// have been waited for, and sent back if needed. The result is valid after `wait`.
  std::vector<at::Tensor> fetch(size_t slot, const std::vector<at::Tensor>& tensors);
  /// Waits for the copies of `fetch`.
  void wait(size_t slot);
  /// Starts to copy `from`, a host buffer, to `to` on the device. Does nothing for a CPU tensor.
  void send_back(const at::Tensor& to, const at::Tensor& from);
  /// Makes later work of the current stream wait for all copies to the device.
  void finish();

  int64_t memory_bytes() const;

 private:
  struct Transfer {
    at::Tensor memory;
    std::optional<c10::Event> copied;
  };

  bool pinned_;
  std::optional<c10::Stream> stream_;
  std::array<Transfer, kSlots> slots_;
};

}  // namespace lockstep::offload
