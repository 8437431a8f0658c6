// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/bucket/bucket_gradients.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

namespace lockstep::zero {

BucketGradients::BucketGradients(
    const BucketLayout& layout,
    BucketCommFormat& format,
    const at::Tensor& shard,
    const at::TensorOptions& options,
    const LowPrecisionPolicy& low_precision_policy)
    : layout_(layout),
      format_(format),
      shard_(shard),
      options_(options),
      comm_options_(options),
      taken_(layout.entries.size(), false) {
  const bool masters = shard.dtype() != options.dtype();
  if (format.gradient_dtype()) {
    comm_options_ = options.dtype(format.gradient_dtype());
  } else if (masters && low_precision_policy.fp32_comm) {
    comm_options_ = options.dtype(at::kFloat);
  }
  rounds_sums_ = masters && low_precision_policy.rounded_sums;
}

at::Tensor BucketGradients::full_gradient(size_t entry) {
  if (!full_gradients_.defined()) {
    full_gradients_ = at::empty({layout_.numel}, comm_options_);
  }
  return full_gradients_.narrow(0, layout_.entries[entry].offset, layout_.entries[entry].numel);
}

at::Tensor BucketGradients::slice_gradient(const ShardSlice& shard_slice) const {
  return shard_gradient_.narrow(
      0, shard_slice.values.storage_offset() - shard_.storage_offset(), shard_slice.values.numel());
}

bool BucketGradients::has_gradients() const {
  return std::any_of(
      layout_.slices.begin(), layout_.slices.end(), [](const ShardSlice& shard_slice) {
        return shard_slice.values.grad().defined();
      });
}

void BucketGradients::take(size_t entry, const at::Tensor& held) {
  at::Tensor& gradient = layout_.parameters[entry].mutable_grad();
  const at::Tensor place = full_gradient(entry).view(layout_.parameters[entry].sizes());
  if (!held.defined()) {
    place.copy_(gradient);
  } else {
    place.copy_(gradient.defined() ? at::add(held, gradient) : held);
  }
  gradient.reset();
  taken_[entry] = true;
}

void BucketGradients::start_reduce() {
  int64_t end = 0;  // The previous entry's; gaps between entries are sent, too.
  for (size_t entry = 0; entry < layout_.entries.size(); ++entry) {
    const flat::BucketEntry& place = layout_.entries[entry];
    const at::Tensor gradient = full_gradient(entry);
    full_gradients_.narrow(0, end, place.offset - end).zero_();
    if (!taken_[entry]) {
      gradient.zero_();
    }
    end = place.offset + place.numel;
  }
  full_gradients_.narrow(0, end, full_gradients_.numel() - end).zero_();
  if (!has_gradients() && is_stored_as_sent()) {
    average_ = std::move(shard_gradient_);  // It has no values to add to.
  }
  if (!average_.defined()) {
    average_ = at::empty(shard_.sizes(), comm_options_);
  }
  const BucketComm& comm = format_.comm();
  if (comm.quantized_gradients) {
    quantized_ = std::make_unique<QuantizedReduction>(
        comm.plus_plus.within, comm.plus_plus.between, full_gradients_);
    full_gradients_.reset();
  } else {
    pending_ = format_.reduce_scatter(average_, full_gradients_);
  }
}

void BucketGradients::wait() {
  if (quantized_) {
    quantized_->finish(average_);
    quantized_.reset();
  }
  if (pending_) {
    pending_->wait();
    pending_.reset();
    full_gradients_.reset();
  }
}

const at::Tensor& BucketGradients::add_average(bool may_be_abandoned) {
  if (std::exchange(is_added_, true)) {
    return shard_gradient_;
  }
  wait();
  if (!has_gradients() && is_stored_as_sent()) {
    shard_gradient_ = std::move(average_);
  } else if (!has_gradients()) {
    if (!shard_gradient_.defined()) {
      shard_gradient_ = at::empty(shard_.sizes(), options_.dtype(shard_.scalar_type()));
    }
    shard_gradient_.copy_(average_);
    average_.reset();
  } else {
    for (const ShardSlice& shard_slice : layout_.slices) {
      if (!shard_slice.values.grad().defined()) {
        slice_gradient(shard_slice)
            .zero_();  // Its gradient was dropped; the memory has old values.
      }
    }
    if (may_be_abandoned) {
      previous_ = shard_gradient_;
      shard_gradient_ = at::add(previous_, average_);
    } else {
      shard_gradient_.add_(average_);
    }
    if (rounds_sums_) {
      shard_gradient_.copy_(shard_gradient_.to(c10::typeMetaToScalarType(options_.dtype())));
    }
    average_.reset();
  }
  return shard_gradient_;
}

void BucketGradients::finish(const std::vector<bool>& has_gradient_on_any_rank) {
  add_average();
  is_added_ = false;
  previous_.reset();
  taken_.assign(taken_.size(), false);
  for (size_t i = 0; i < layout_.slices.size(); ++i) {
    const ShardSlice& shard_slice = layout_.slices[i];
    if (has_gradient_on_any_rank[layout_.entry_of_slice[i]] ||
        shard_slice.values.grad().defined()) {
      shard_slice.values.mutable_grad() = slice_gradient(shard_slice);
    }
  }
}

void BucketGradients::abandon(bool wait) noexcept {
  if (wait) {
    try {
      this->wait();
    } catch (const std::exception&) {
      // The caller is about to report the first error.
    }
  }
  pending_.reset();
  quantized_.reset();
  full_gradients_.reset();
  average_.reset();
  is_added_ = false;
  if (previous_.defined()) {
    shard_gradient_ = std::exchange(previous_, {});
  }
  taken_.assign(taken_.size(), false);
}

}  // namespace lockstep::zero
