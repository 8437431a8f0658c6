// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/bucket/shard_store.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ops/all.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"

namespace lockstep::zero {

ShardPlaces::ShardPlaces(const OffloadParam& options, bool keep_rounded_on_device)
    : options_(options), keep_rounded_on_device_(keep_rounded_on_device) {
  if (options_.max_in_cpu < 0) {
    throw ConfigError(
        "offload",
        fmt::format(
            "offload_param.max_in_cpu is a number of elements and cannot be negative; got "
            "offload_param.max_in_cpu={}",
            options_.max_in_cpu));
  }
  if (options_.device == OffloadDevice::kNvme) {
    file_ = std::make_shared<offload::ScratchFile>(options_.nvme_path, "parameters");
  }
}

void ShardPlaces::reserve(
    const NamedTensors& parameters, int ranks, const LowPrecisionPolicy& low_precision_policy) {
  int64_t elements = 0;
  int64_t bytes = 0;
  for (const NamedTensor& item : parameters) {
    const int64_t own = item.tensor.numel() / ranks;
    elements += own;
    bytes += own * static_cast<int64_t>(
                       c10::elementSize(update_dtype(item.tensor, low_precision_policy)));
  }
  if (file_ && elements > options_.max_in_cpu) {
    file_->reserve(bytes / elements * (elements - options_.max_in_cpu));
  }
}

ShardPlaces::Place ShardPlaces::next(int64_t elements) {
  if (options_.device == OffloadDevice::kNvme && in_memory_ + elements > options_.max_in_cpu) {
    return {
        .device = OffloadDevice::kNvme,
        .file = file_,
        .keep_rounded_on_device = keep_rounded_on_device_};
  }
  in_memory_ += elements;
  return {
      .device =
          options_.device == OffloadDevice::kNone ? OffloadDevice::kNone : OffloadDevice::kCpu,
      .pinned = options_.pin_memory,
      .keep_rounded_on_device = keep_rounded_on_device_};
}

ShardStore::ShardStore(
    const Group& group,
    int64_t elements,
    const at::TensorOptions& options,
    at::ScalarType dtype,
    const ShardPlaces::Place& place)
    : options_(options), are_masters_(c10::typeMetaToScalarType(options.dtype()) != dtype) {
  const at::TensorOptions own = options.dtype(dtype);
  const at::Device device = options.device();
  if (place.device == OffloadDevice::kNvme) {
    file_ = std::make_shared<offload::FileTensor>(place.file, elements, own);
    values_ = file_->tensor();
  } else if (place.device == OffloadDevice::kCpu && !device.is_cpu()) {
    values_ =
        at::zeros({elements}, own.device(at::kCPU).pinned_memory(place.pinned && device.is_cuda()));
  } else if (are_masters_) {
    values_ = at::zeros({elements}, own);  // Masters are not sent themselves.
  } else {
    values_ = group.empty({elements}, own).zero_();
  }
  if (are_masters_ && place.keep_rounded_on_device && is_off_device()) {
    rounded_ = group.empty({elements}, options);
  }
}

at::Tensor ShardStore::on_device(const at::Tensor& buffer) {
  if (is_on_device()) {
    return values_;
  }
  if (rounded_.defined()) {
    if (!rounded_is_current_) {
      load(rounded_);
      rounded_is_current_ = true;
    }
    return rounded_;
  }
  at::Tensor loaded = buffer.defined() ? buffer : at::empty(values_.sizes(), options_);
  load(loaded);
  return loaded;
}

at::Tensor ShardStore::in_memory() const {
  if (!file_) {
    return values_;
  }
  at::Tensor host = at::empty(values_.sizes(), values_.options());
  file_->read(host.mutable_data_ptr());
  return host;
}

void ShardStore::load(const at::Tensor& to) const {
  if (file_ && to.is_cpu() && !are_masters_) {
    file_->read(to.mutable_data_ptr());
    return;
  }
  to.copy_(in_memory(), /*non_blocking=*/values_.is_pinned() && !are_masters_);
}

void ShardStore::store(const at::Tensor& from) {
  if (are_masters_) {
    store_written(from);
  } else if (file_) {
    const at::Tensor host = from.to(at::kCPU).contiguous();
    file_->write(host.const_data_ptr());
  } else {
    values_.copy_(from);
  }
  mark_changed();
}

void ShardStore::store_written(const at::Tensor& from) {
  const at::Tensor now = in_memory();
  const at::Tensor given = from.to(now.device());
  // Bits are compared, so that an unchanged NaN counts as unwritten.
  const at::Tensor unwritten =
      now.to(given.scalar_type()).view(at::kShort).eq(given.view(at::kShort));
  if (!file_) {
    at::where_out(values_, unwritten, values_, given);
  } else if (!unwritten.all().item<bool>()) {
    const at::Tensor mixed = at::where(unwritten, now, given);
    file_->write(mixed.const_data_ptr());
  }
}

}  // namespace lockstep::zero
