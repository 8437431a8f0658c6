// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::offload {

/// Memory of a device that lies in the host's for a while, and leaves its room on the device to
/// others. The tensors stay what they are, as do all views of them; who touches one meanwhile is
/// told so by an error (c10::Error), never given garbage.
///
/// Tensors of the CPU, whose memory is the host's already, are left alone. Cost: a copy there and
/// one back. Thread safety: none. What is still away when this goes stays untouchable.
class OffloadedStorage {
 public:
  /// Takes the memory of all that `tensors` are views of, once each; undefined ones are passed
  /// over. `pinned`: to page-locked memory, if they are CUDA's. `non_blocking`: then the copy may
  /// still be under way on the current stream, behind which whatever gets the room comes, too.
  OffloadedStorage(const std::vector<at::Tensor>& tensors, bool pinned, bool non_blocking);

  /// Brings it back, onto new memory of the device. c10::OutOfMemoryError if there is no room; what
  /// is not back then still lies on the host, and may be tried again.
  void bring_back(bool non_blocking);

  /// That lie on the host.
  int64_t bytes() const;

 private:
  struct Place {
    at::Tensor device;  ///< All bytes of a storage, kByte.
    at::Tensor host;
  };
  std::vector<Place> places_;
};

}  // namespace lockstep::offload
