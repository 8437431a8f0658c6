// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/offloaded_storage.h"

#include <set>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

namespace lockstep::offload {
namespace {

constexpr const char* kAway =
    "[offload] these values are in the host's memory, where offload_states() has put them, and "
    "something touched them on the device; call reload_states() first";

/// All that `tensor` is a view of.
at::Tensor all_bytes(const at::Tensor& tensor) {
  const at::Tensor like =
      at::empty({0}, at::TensorOptions().device(tensor.device()).dtype(at::kByte));
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(tensor.storage()), like.key_set(), like.dtype());
  impl->set_sizes_contiguous({static_cast<int64_t>(tensor.storage().nbytes())});
  return at::Tensor(std::move(impl));
}

}  // namespace

OffloadedStorage::OffloadedStorage(
    const std::vector<at::Tensor>& tensors, bool pinned, bool non_blocking) {
  const c10::AutoGradMode no_grad(false);
  std::set<const c10::StorageImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.storage().nbytes() == 0 ||
        !seen.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      continue;
    }
    const c10::DeviceGuard device(tensor.device());
    Place place{.device = all_bytes(tensor), .host = {}};
    const bool page_locked = pinned && tensor.is_cuda();
    place.host = at::empty(
        place.device.sizes(), at::TensorOptions().dtype(at::kByte).pinned_memory(page_locked));
    place.host.copy_(place.device, non_blocking && page_locked);
    c10::StorageImpl* storage = place.device.storage().unsafeGetStorageImpl();
    at::DataPtr freed(nullptr, tensor.device());
    std::swap(freed, storage->_mutable_data_ptr_no_checks());
    // The size stays: views are checked against it.
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kAway);
    places_.push_back(std::move(place));
  }
}

void OffloadedStorage::bring_back(bool non_blocking) {
  const c10::AutoGradMode no_grad(false);
  while (!places_.empty()) {
    const Place& place = places_.back();
    const c10::DeviceGuard device(place.device.device());
    const at::Tensor fresh = at::empty(place.device.sizes(), place.device.options());
    fresh.copy_(place.host, non_blocking && place.host.is_pinned());
    c10::StorageImpl* storage = place.device.storage().unsafeGetStorageImpl();
    at::DataPtr memory(nullptr, place.device.device());
    std::swap(memory, fresh.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
    storage->set_data_ptr_noswap(std::move(memory));
    storage->clear_data_ptr_access_error_msg_();
    places_.pop_back();
  }
}

int64_t OffloadedStorage::bytes() const {
  int64_t all = 0;
  for (const Place& place : places_) {
    all += place.host.numel();
  }
  return all;
}

}  // namespace lockstep::offload
