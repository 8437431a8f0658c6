// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/device/copy_ahead.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::data {
namespace {

c10::Stream stream_of_copies(at::Device device) {
  static std::mutex mutex;
  static std::unordered_map<at::Device, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto known = streams.find(device);
  if (known != streams.end()) {
    return known->second;
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type())
                                 .getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  return streams.emplace(device, stream).first->second;
}

}  // namespace

CopyAhead::CopyAhead(const std::optional<at::Device>& device) : device_(device) {
  if (!device || device->is_cpu() || device->is_meta()) {
    return;
  }
  stream_.emplace(stream_of_copies(
      device->has_index() ? *device : c10::impl::VirtualGuardImpl(device->type()).getDevice()));
}

std::shared_ptr<c10::Event> CopyAhead::recorded(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

std::shared_ptr<c10::Event> CopyAhead::recorded_producer(
    const std::vector<at::Tensor>& tensors) const {
  const at::Device device = stream_->device();
  const bool any = std::ranges::any_of(tensors, [device](const at::Tensor& tensor) {
    return tensor.defined() && tensor.device() == device;
  });
  return any ? recorded(c10::impl::VirtualGuardImpl(device.type()).getStream(device)) : nullptr;
}

void CopyAhead::wait_for(c10::Event& event) const {
  event.block(c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()));
}

void CopyAhead::record_use(const std::vector<at::Tensor>& tensors) const {
  const c10::impl::VirtualGuardImpl guard(stream_->device_type());
  const c10::Stream current = guard.getStream(stream_->device());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.device() != stream_->device()) {
      continue;
    }
    for (const at::Tensor& part : stored_parts(tensor)) {
      guard.recordDataPtrOnStream(part.storage().data_ptr(), current);
    }
  }
}

}  // namespace lockstep::data
