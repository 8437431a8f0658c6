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

bool is_trained_in_16_bits(const at::Tensor& parameter) {
  const at::ScalarType own = parameter.scalar_type();
  return parameter.requires_grad() && (own == at::kHalf || own == at::kBFloat16);
}

at::ScalarType update_dtype(
    const at::Tensor& parameter, const LowPrecisionPolicy& low_precision_policy) {
  return low_precision_policy.fp32_masters && is_trained_in_16_bits(parameter)
             ? at::kFloat
             : parameter.scalar_type();
}

ShardPlaces::ShardPlaces(const OffloadParam& options, bool copies_stay)
    : options_(options), copies_stay_(copies_stay) {
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
    return {.device = OffloadDevice::kNvme, .file = file_, .copy_stays = copies_stay_};
  }
  in_memory_ += elements;
  return {
      .device =
          options_.device == OffloadDevice::kNone ? OffloadDevice::kNone : OffloadDevice::kCpu,
      .pinned = options_.pin_memory,
      .copy_stays = copies_stay_};
}

ShardStore::ShardStore(
    const Group& group,
    int64_t elements,
    const at::TensorOptions& options,
    at::ScalarType dtype,
    const ShardPlaces::Place& place)
    : device_(options.device()), are_masters_(c10::typeMetaToScalarType(options.dtype()) != dtype) {
  const at::TensorOptions own = options.dtype(dtype);
  if (place.device == OffloadDevice::kNvme) {
    file_ = std::make_shared<offload::FileTensor>(place.file, elements, own);
    values_ = file_->tensor();
  } else if (place.device == OffloadDevice::kCpu && !device_.is_cpu()) {
    values_ = at::zeros(
        {elements}, own.device(at::kCPU).pinned_memory(place.pinned && device_.is_cuda()));
  } else if (are_masters_) {
    values_ = at::zeros({elements}, own);  // They do not travel themselves.
  } else {
    values_ = group.empty({elements}, own).zero_();
  }
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
}

void ShardStore::store_written(const at::Tensor& from) {
  const at::Tensor now = in_memory();
  const at::Tensor given = from.to(now.device());
  // By bits: a NaN is what it was, too.
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
