// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/offloaded_storage.h"

#include <set>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "lockstep/offload/storage_access.h"

namespace lockstep::offload {
namespace {

constexpr const char* kUsedWhileOffloaded =
    "[offload] a tensor was used on the device after offload_states() moved it to host memory; "
    "call reload_states() first";

/// Returns the storage of `tensor` as a 1-D tensor of bytes.
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
    Entry entry{.device = all_bytes(tensor), .host = {}};
    const bool page_locked = pinned && tensor.is_cuda();
    entry.host = at::empty(
        entry.device.sizes(), at::TensorOptions().dtype(at::kByte).pinned_memory(page_locked));
    entry.host.copy_(entry.device, non_blocking && page_locked);
    c10::StorageImpl* storage = entry.device.storage().unsafeGetStorageImpl();
    at::DataPtr freed(nullptr, tensor.device());
    std::swap(freed, storage->_mutable_data_ptr_no_checks());
    // The size stays: views are checked against it.
    refuse_access(*storage, kUsedWhileOffloaded);
    entries_.push_back(std::move(entry));
  }
}

void OffloadedStorage::reload(bool non_blocking) {
  const c10::AutoGradMode no_grad(false);
  while (!entries_.empty()) {
    const Entry& entry = entries_.back();
    const c10::DeviceGuard device(entry.device.device());
    const at::Tensor fresh = at::empty(entry.device.sizes(), entry.device.options());
    fresh.copy_(entry.host, non_blocking && entry.host.is_pinned());
    c10::StorageImpl* storage = entry.device.storage().unsafeGetStorageImpl();
    at::DataPtr memory(nullptr, entry.device.device());
    std::swap(memory, fresh.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
    storage->set_data_ptr_noswap(std::move(memory));
    permit_access(*storage);
    entries_.pop_back();
  }
}

int64_t OffloadedStorage::bytes() const {
  int64_t all = 0;
  for (const Entry& entry : entries_) {
    all += entry.host.numel();
  }
  return all;
}

}  // namespace lockstep::offload
