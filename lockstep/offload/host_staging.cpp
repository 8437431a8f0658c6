// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/host_staging.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/offload/alignment.h"

namespace lockstep::offload {

void HostStaging::begin(at::Device device) {
  if (device.is_cpu()) {
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!stream_ || stream_->device() != device) {
    stream_.emplace(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
  }
  c10::Event ready(device.type());
  ready.record(guard.getStream(device));
  ready.block(*stream_);
}

std::vector<at::Tensor> HostStaging::fetch(size_t slot, const std::vector<at::Tensor>& tensors) {
  Transfer& place = slots_.at(slot);
  int64_t bytes = 0;
  bool pin = false;
  for (const at::Tensor& tensor : tensors) {
    bytes += tensor.is_cpu() ? 0 : aligned(static_cast<int64_t>(tensor.nbytes()));
    pin = pin || (pinned_ && tensor.is_cuda());
  }
  if (bytes == 0) {
    return tensors;
  }
  if (!place.memory.defined() || place.memory.numel() < bytes) {
    place.memory.reset();
    place.memory = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(pin));
  }
  const c10::StreamGuard on_copy_stream(*stream_);
  std::vector<at::Tensor> copies;
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cpu()) {
      copies.push_back(tensor);
      continue;
    }
    const auto length = static_cast<int64_t>(tensor.nbytes());
    const at::Tensor copy = place.memory.narrow(0, begin, length)
                                .view(tensor.scalar_type())
                                .as_strided(tensor.sizes(), tensor.strides());
    begin += aligned(length);
    copies.push_back(copy.copy_(tensor, /*non_blocking=*/true));
  }
  place.copied.emplace(stream_->device_type());
  place.copied->record(*stream_);
  return copies;
}

void HostStaging::wait(size_t slot) {
  Transfer& place = slots_.at(slot);
  if (place.copied) {
    place.copied->synchronize();
    place.copied.reset();
  }
}

void HostStaging::send_back(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cpu()) {
    return;
  }
  const c10::StreamGuard on_copy_stream(*stream_);
  to.copy_(from, /*non_blocking=*/true);
}

void HostStaging::finish() {
  if (!stream_) {
    return;
  }
  c10::Event sent(stream_->device_type());
  sent.record(*stream_);
  sent.block(c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()));
}

int64_t HostStaging::memory_bytes() const {
  int64_t bytes = 0;
  for (const Transfer& slot : slots_) {
    bytes += slot.memory.defined() ? slot.memory.numel() : 0;
  }
  return bytes;
}

}  // namespace lockstep::offload
