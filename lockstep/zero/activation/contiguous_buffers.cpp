// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/activation/contiguous_buffers.h"

#include <algorithm>
#include <cstddef>
#include <exception>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "lockstep/base/error.h"
#include "lockstep/offload/alignment.h"

namespace lockstep {

ContiguousBuffers::~ContiguousBuffers() {
  wait_for_all();
}

/// The caching allocator of pinned memory tracks copies of entire blocks, not of parts of a block.
void ContiguousBuffers::wait_for_all() const noexcept {
  if (!pinned_ || !memory_.defined()) {
    return;
  }
  try {
    at::accelerator::synchronizeDevice(at::accelerator::getDeviceIndex());
  } catch (const std::exception&) {
    // A device that has failed copies nothing any more.
  }
}

void ContiguousBuffers::make_room(int64_t bytes) {
  if (bytes <= slot_bytes_) {
    return;
  }
  if (std::ranges::find(taken_, true) != taken_.end()) {
    throw ConfigError(
        "activation_checkpointing",
        fmt::format(
            "contiguous_memory_optimization needs checkpoints with inputs of equal size; got an "
            "input of {} bytes, expected at most the {} of the previous one; use checkpoints of "
            "one size, or set contiguous_memory_optimization to false",
            bytes,
            slot_bytes_));
  }
  wait_for_all();
  memory_.reset();
  slot_bytes_ = offload::aligned(bytes);
  memory_ = at::empty(
      {slot_bytes_ * static_cast<int64_t>(taken_.size())},
      at::TensorOptions(at::kByte).device(device_).pinned_memory(pinned_));
}

at::Tensor ContiguousBuffers::take(int64_t numel, at::ScalarType dtype) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto free = std::ranges::find(taken_, false);
  if (free == taken_.end()) {
    throw ConfigError(
        "activation_checkpointing",
        fmt::format(
            "number_checkpoints is too small; got checkpoint {0} while {1} wait for their "
            "backward, expected at most {1}; set it to the checkpoints of a forward times the "
            "forwards before a backward",
            taken_.size() + 1,
            taken_.size()));
  }
  make_room(numel * static_cast<int64_t>(c10::elementSize(dtype)));
  *free = true;
  const auto entry = static_cast<size_t>(free - taken_.begin());
  auto* const begin =
      static_cast<std::byte*>(memory_.data_ptr()) + static_cast<ptrdiff_t>(entry) * slot_bytes_;
  lock.unlock();  // The deleter gives the buffer back, also if from_blob fails.
  return at::from_blob(
      begin,
      {numel},
      [self = shared_from_this(), entry](void*) { self->give_back(entry); },
      at::TensorOptions(dtype).device(device_),
      device_);
}

void ContiguousBuffers::give_back(size_t entry) {
  const std::lock_guard<std::mutex> lock(mutex_);
  taken_[entry] = false;
}

}  // namespace lockstep
