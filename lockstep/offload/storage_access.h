// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include <c10/core/StorageImpl.h>

namespace lockstep::offload {

/// Returns whether this torch can permit accesses again; torch 2.11 cannot.
template <typename Storage>
concept PermitsAccess = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
};

/// Makes each access to the storage, whose memory was freed, fail with `message`. With torch 2.11
/// the error is torch's own for tensors without memory.
template <typename Storage = c10::StorageImpl>
void refuse_access(Storage& storage, std::string message) {
  if constexpr (PermitsAccess<Storage>) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  }
}

/// Permits accesses again, after the storage got new memory.
template <typename Storage = c10::StorageImpl>
void permit_access(Storage& storage) {
  if constexpr (PermitsAccess<Storage>) {
    storage.clear_data_ptr_access_error_msg_();
  }
}

}  // namespace lockstep::offload
