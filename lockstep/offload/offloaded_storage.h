// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::offload {

/// Device memory that is temporarily moved to the host. The tensors and all their views stay valid
/// objects; using one before `reload` throws c10::Error.
///
/// CPU tensors are unchanged. Cost: a copy to the host and one back. Tensors that
/// are still offloaded at destruction stay unusable.
class OffloadedStorage {
 public:
  /// Moves the storages of all `tensors`, each once; skips undefined ones. `pinned`: to page-locked
  /// memory, for CUDA. `non_blocking`: the copy may still run on the current stream at return;
  /// later users of the freed memory are ordered after it.
  OffloadedStorage(const std::vector<at::Tensor>& tensors, bool pinned, bool non_blocking);

  /// Moves the storages back to new device memory. Throws c10::OutOfMemoryError if memory does not
  /// suffice. The remaining storages stay on the host then, and the call may be repeated.
  void reload(bool non_blocking);

  /// Returns the bytes on the host.
  int64_t bytes() const;

 private:
  struct Entry {
    at::Tensor device;  ///< The bytes of a storage, kByte.
    at::Tensor host;
  };
  std::vector<Entry> entries_;
};

}  // namespace lockstep::offload
