// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tensor/divided_mark.h"

#include <map>
#include <mutex>
#include <utility>

#include <c10/core/TensorImpl.h>

namespace lockstep::comm {
namespace {

/// Identifies a parameter by its first element. Parameters in flat buffers share a storage.
using Place = std::pair<const c10::StorageImpl*, int64_t>;

Place place_of(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset()};
}

struct Registry {
  std::mutex mutex;
  std::map<Place, std::shared_ptr<const DividedInfo>> infos;
};

Registry& registry() {
  static auto* const made = new Registry;  // Parameters may outlive static objects.
  return *made;
}

at::Tensor alias(const at::Tensor& tensor, c10::DispatchKeySet keys) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), keys, tensor.dtype());
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return at::Tensor(std::move(impl));
}

/// Sets the data, and moves the registered information.
void move_to(const at::Tensor& parameter, const at::Tensor& data) {
  Registry& all = registry();
  const Place old = place_of(parameter);
  parameter.set_data(alias(data, data.key_set().add(kDividedParamKey)));
  const std::lock_guard lock(all.mutex);
  auto node = all.infos.extract(old);
  if (!node.empty()) {
    node.key() = place_of(parameter);
    all.infos.insert(std::move(node));
  }
}

}  // namespace

void mark_divided(const at::Tensor& parameter, std::shared_ptr<const DividedInfo> info) {
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.infos.insert_or_assign(place_of(parameter), std::move(info));
  }
  move_to(parameter, parameter.detach());
}

void forget_divided(const at::Tensor& parameter) noexcept {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.infos.erase(place_of(parameter));
}

std::shared_ptr<const DividedInfo> divided_info(const at::Tensor& tensor) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.infos.find(place_of(tensor));
  return found == all.infos.end() ? nullptr : found->second;
}

void set_data_keeping_mark(const at::Tensor& parameter, const at::Tensor& data) {
  if (is_divided(parameter)) {
    move_to(parameter, data);
  } else {
    parameter.set_data(data);
  }
}

at::Tensor alias_without_mark(const at::Tensor& tensor) {
  at::Tensor plain = alias(tensor, tensor.key_set().remove(kDividedParamKey));
  plain.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return plain;
}

}  // namespace lockstep::comm
