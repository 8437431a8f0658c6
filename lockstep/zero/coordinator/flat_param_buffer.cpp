// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/flat_param_buffer.h"

#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/offload/storage_access.h"
#include "lockstep/zero/coordinator/param_cast.h"

namespace lockstep::zero {
namespace {

using comm::kShardedParamKey;

constexpr const char* kDestroyedMessage =
    "[zero] this parameter's values are gone: each rank had a part of them, and the Accelerator "
    "that gathered the parts was destroyed; keep the Accelerator for as long as its model is used, "
    "or call save_model() or clone() parameters on all ranks before";

/// All existing buffers, by the storage of their tensors.
class Registry {
 public:
  void add(const c10::StorageImpl* storage, FlatParamBuffer* buffer) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    buffers_[storage] = buffer;
  }
  void remove(const c10::StorageImpl* storage) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    buffers_.erase(storage);
  }
  FlatParamBuffer* find(const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!impl.key_set().has(kShardedParamKey) || !impl.has_storage()) {
      return nullptr;
    }
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto found = buffers_.find(impl.unsafe_storage().unsafeGetStorageImpl());
    return found == buffers_.end() ? nullptr : found->second;
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, FlatParamBuffer*> buffers_;
};

Registry& registry() {
  static auto* const all = new Registry;  // Parameters may outlive the end of main.
  return *all;
}

}  // namespace

FlatParamBuffer::FlatParamBuffer(
    int64_t numel, const at::TensorOptions& options, std::string freed_message)
    : freed_message_(std::move(freed_message)) {
  install_unshard_dispatch();
  const c10::InferenceMode ordinary(false);  // Views of inference tensors could not be trained.
  values_ = at::empty({0}, options.requires_grad(false));
  c10::StorageImpl* storage = values_.storage().unsafeGetStorageImpl();
  // The size stays the same without memory: torch checks views against it.
  storage->set_nbytes(static_cast<size_t>(numel) * values_.element_size());
  values_.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  registry().add(storage, this);
  take_memory();
}

FlatParamBuffer::~FlatParamBuffer() {
  c10::StorageImpl* storage = values_.storage().unsafeGetStorageImpl();
  registry().remove(storage);
  // With and without memory, which differs between ranks and parameters.
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kDestroyedMessage);
}

at::Tensor FlatParamBuffer::view(int64_t offset, at::IntArrayRef sizes) const {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(values_.storage()), values_.key_set().add(kShardedParamKey), values_.dtype());
  impl->set_storage_offset(values_.storage_offset() + offset);
  impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

at::Tensor FlatParamBuffer::view(at::IntArrayRef sizes, at::IntArrayRef strides) const {
  at::Tensor strided = view(0, {numel()});
  strided.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return strided;
}

void FlatParamBuffer::keep(std::unique_ptr<ParamCast> cast) {
  std::erase_if(casts_, [](const auto& each) { return !each->is_used(); });
  casts_.push_back(std::move(cast));
}

void FlatParamBuffer::make_memory(at::DataPtr given) {
  LOCKSTEP_ASSERT(!has_memory_, "a unit was unsharded twice");
  const c10::DeviceGuard device(values_.device());
  c10::StorageImpl* storage = values_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(
      given ? std::move(given) : storage->allocator()->allocate(storage->nbytes()));
  offload::permit_access(*storage);
  has_memory_ = true;
}

at::DataPtr FlatParamBuffer::take_memory() {
  for (const auto& cast : casts_) {
    cast->free_memory();
  }
  c10::StorageImpl* storage = values_.storage().unsafeGetStorageImpl();
  at::DataPtr taken(nullptr, values_.device());
  std::swap(taken, storage->_mutable_data_ptr_no_checks());
  offload::refuse_access(*storage, freed_message_);
  has_memory_ = false;
  return taken;
}

FlatParamBuffer* FlatParamBuffer::find(const at::Tensor& tensor) {
  return tensor.defined() ? registry().find(tensor) : nullptr;
}

AccessHandler* FlatParamBuffer::owner_of(const at::Tensor& tensor) {
  const FlatParamBuffer* buffer = find(tensor);
  return buffer == nullptr ? nullptr : buffer->owner();
}

Gathered::Gathered(const std::vector<at::Tensor>& tensors, bool writes) : writes_(writes) {
  try {
    for (const at::Tensor& tensor : tensors) {
      if (AccessHandler* owner = FlatParamBuffer::owner_of(tensor)) {
        owner->pin(writes);
        owners_.push_back(owner);
      }
    }
  } catch (...) {
    release();
    throw;
  }
}

Gathered::~Gathered() {
  release();
}

void Gathered::release() noexcept {
  for (AccessHandler* owner : owners_) {
    owner->unpin(writes_);
  }
}

}  // namespace lockstep::zero
