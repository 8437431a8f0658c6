// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/shard_store.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"

namespace lockstep::zero {

ShardPlaces::ShardPlaces(const OffloadParam& options) : options_(options) {
  if (options_.max_in_cpu < 0) {
    throw ConfigError(
        "offload",
        fmt::format(
            "a number of elements cannot be negative; got offload_param.max_in_cpu={}",
            options_.max_in_cpu));
  }
  if (options_.device == OffloadDevice::kNvme) {
    file_ = std::make_shared<offload::ScratchFile>(options_.nvme_path, "parameters");
  }
}

void ShardPlaces::reserve(const NamedTensors& parameters, int64_t kept, int ranks) {
  int64_t elements = 0;
  int64_t bytes = 0;
  for (const NamedTensor& item : parameters) {
    if (item.tensor.numel() > kept) {
      elements += item.tensor.numel() / ranks;
      bytes += static_cast<int64_t>(item.tensor.nbytes()) / ranks;
    }
  }
  if (file_ && elements > options_.max_in_cpu) {
    file_->reserve(bytes / elements * (elements - options_.max_in_cpu));
  }
}

ShardPlaces::Place ShardPlaces::next(int64_t elements) {
  if (options_.device == OffloadDevice::kNvme && in_memory_ + elements > options_.max_in_cpu) {
    return {.device = OffloadDevice::kNvme, .file = file_};
  }
  in_memory_ += elements;
  return {
      .device =
          options_.device == OffloadDevice::kNone ? OffloadDevice::kNone : OffloadDevice::kCpu,
      .pinned = options_.pin_memory};
}

ShardStore::ShardStore(
    const Group& group,
    int64_t elements,
    const at::TensorOptions& options,
    const ShardPlaces::Place& place)
    : device_(options.device()) {
  if (place.device == OffloadDevice::kNvme) {
    file_ = std::make_shared<offload::FileTensor>(place.file, elements, options);
    values_ = file_->tensor();
  } else if (place.device == OffloadDevice::kCpu && !device_.is_cpu()) {
    values_ = at::zeros(
        {elements}, options.device(at::kCPU).pinned_memory(place.pinned && device_.is_cuda()));
  } else {
    values_ = group.empty({elements}, options).zero_();
  }
}

void ShardStore::load(const at::Tensor& to) const {
  if (!file_) {
    to.copy_(values_, /*non_blocking=*/values_.is_pinned());
    return;
  }
  if (to.is_cpu()) {
    file_->read(to.mutable_data_ptr());
    return;
  }
  const at::Tensor host = at::empty(values_.sizes(), values_.options());
  file_->read(host.mutable_data_ptr());
  to.copy_(host);
}

void ShardStore::store(const at::Tensor& from) {
  if (!file_) {
    values_.copy_(from);
    return;
  }
  const at::Tensor host = from.to(at::kCPU).contiguous();
  file_->write(host.const_data_ptr());
}

}  // namespace lockstep::zero
