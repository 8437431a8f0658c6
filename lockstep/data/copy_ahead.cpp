// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/copy_ahead.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::data {

CopyAhead::CopyAhead(const std::optional<at::Device>& device) : device_(device) {
  if (!device || device->is_cpu() || device->is_meta()) {
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device->type());
  const at::Device place = device->has_index() ? *device : guard.getDevice();
  stream_.emplace(guard.getStreamFromGlobalPool(place, /*isHighPriority=*/false));
}

std::shared_ptr<c10::Event> CopyAhead::recorded() const {
  auto event = std::make_shared<c10::Event>(stream_->device_type());
  event->record(*stream_);
  return event;
}

void CopyAhead::adopt(c10::Event& there, const std::vector<at::Tensor>& tensors) const {
  const c10::impl::VirtualGuardImpl guard(stream_->device_type());
  const c10::Stream current = guard.getStream(stream_->device());
  there.block(current);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.device() == stream_->device() && tensor.has_storage()) {
      guard.recordDataPtrOnStream(tensor.storage().data_ptr(), current);
    }
  }
}

}  // namespace lockstep::data
