// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/bucket/sharded_bucket.h"

#include <utility>

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep::zero {
namespace {

constexpr const char* kFreedMessage =
    "[zero] this parameter's values are not in memory: ZeRO stage 3 shards them, and only torch "
    "operations gather them; its memory was read directly (data_ptr, accessor, serialization); "
    "read it within Accelerator::with_gathered_parameters, or save with save_model or save_state";

}  // namespace

void QuantizedShard::write(int64_t begin, const at::Tensor& values) {
  // Parameters share blocks. Rounding each write separately would use the scale of values that the
  // next write replaces.
  if (!exact_.defined()) {
    exact_ = dequantize();
  }
  const at::Tensor place = exact_.narrow(0, begin, values.numel());
  // Values that were rounded already stay bit-exact.
  if (!place.equal(values)) {
    place.copy_(values);
    bytes_ = format_.encode(exact_);
  }
}

ShardedBucket::ShardedBucket(
    const flat::BucketPlan& plan,
    const std::vector<at::Tensor>& parameters,
    BucketComm comm,
    ParamPlacement placement,
    ShardPlaces* places,
    const LowPrecisionPolicy& low_precision_policy)
    : layout_(plan, comm.parameter_group),
      options_(parameters[plan.entries[0].parameter].detach().options()),
      format_(std::move(comm), plan, options_, layout_.numel) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor& first = parameters[plan.entries[0].parameter];
  create_storage(first, placement, places, low_precision_policy);
  for (const flat::BucketEntry& entry : plan.entries) {
    add_parameter(parameters[entry.parameter]);
  }
  if (shard_file()) {
    shard_file()->release_pages();
  }
  if (is_quantized()) {
    quantized_.emplace(format_, std::exchange(shard_, {}));
  } else if (first.requires_grad()) {
    gradients_ =
        std::make_unique<BucketGradients>(layout_, format_, shard_, options_, low_precision_policy);
  }
}

void ShardedBucket::create_storage(
    const at::Tensor& parameter,
    ParamPlacement placement,
    ShardPlaces* places,
    const LowPrecisionPolicy& low_precision_policy) {
  const Group& group = format_.comm().parameter_group;
  if (placement == ParamPlacement::kSharded) {
    full_ = std::make_unique<FlatParamBuffer>(layout_.numel, options_, kFreedMessage);
  } else {
    values_ = group.empty({layout_.numel}, options_).zero_();
  }
  const at::ScalarType updated_in = update_dtype(parameter, low_precision_policy);
  if (is_quantized()) {
    shard_ = at::zeros({layout_.shard_numel}, options_);  // Until it is quantized.
  } else if (full_ || updated_in != parameter.scalar_type()) {
    ShardPlaces::Place place =
        places != nullptr ? places->next(layout_.shard_numel) : ShardPlaces::Place();
    // A replicated bucket has the rounded values.
    place.keep_rounded_on_device = place.keep_rounded_on_device && full_ != nullptr;
    store_ = std::make_unique<ShardStore>(group, layout_.shard_numel, options_, updated_in, place);
    shard_ = store_->values();
  } else {
    shard_ = own_part();
  }
}

void ShardedBucket::add_parameter(const at::Tensor& parameter) {
  // All ranks gather a parameter created by zero_init, also those that own none of it.
  const Gathered gathered({parameter}, /*writes=*/false);
  const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kShardedParamKey);
  const size_t index = layout_.parameters.size();
  const flat::BucketEntry& entry = layout_.entries[index];
  const auto [begin, end] = layout_.own_range(index);
  at::Tensor own;
  if (begin < end) {
    own = shard_.narrow(0, begin - layout_.shard_begin, end - begin);
  }
  if ((store_ || is_quantized()) && own.defined()) {
    own.copy_(parameter.reshape({-1}).narrow(0, begin - entry.offset, end - begin));
  }
  if (full_) {
    parameter.set_data(full_->view(entry.offset, parameter.sizes()));
  } else {
    const at::Tensor place = values_.narrow(0, entry.offset, entry.numel).view(parameter.sizes());
    place.copy_(parameter);
    parameter.set_data(place);
  }
  layout_.parameters.push_back(parameter);
  if (own.defined() && !is_quantized()) {
    // A separate leaf: views of a tensor that requires gradients could not be updated.
    const at::Tensor values = own.variable_data();
    values.set_requires_grad(parameter.requires_grad());
    layout_.slices.push_back({parameter, begin - entry.offset, values});
    layout_.entry_of_slice.push_back(index);
  }
}

std::vector<ShardSlice> ShardedBucket::dequantized() const {
  std::vector<ShardSlice> copies;
  if (!quantized_) {
    return copies;
  }
  const at::Tensor all = quantized_->dequantize();
  for (size_t i = 0; i < layout_.entries.size(); ++i) {
    const auto [begin, end] = layout_.own_range(i);
    if (begin < end) {
      copies.push_back(
          {layout_.parameters[i],
           begin - layout_.entries[i].offset,
           all.narrow(0, begin - layout_.shard_begin, end - begin).clone()});
    }
  }
  return copies;
}

void ShardedBucket::store_quantized(const ShardSlice& copy) {
  for (size_t i = 0; i < layout_.entries.size(); ++i) {
    if (layout_.parameters[i].is_same(copy.parameter)) {
      quantized_->write(layout_.own_range(i).first - layout_.shard_begin, copy.values);
    }
  }
}

bool ShardedBucket::is_in_bucket(size_t entry) const {
  const c10::TensorImpl& parameter = *layout_.parameters[entry].unsafeGetTensorImpl();
  const c10::TensorImpl& bucket = *values().unsafeGetTensorImpl();
  return parameter.has_storage() &&
         parameter.unsafe_storage().unsafeGetStorageImpl() ==
             bucket.unsafe_storage().unsafeGetStorageImpl() &&
         parameter.storage_offset() == bucket.storage_offset() + layout_.entries[entry].offset;
}

void ShardedBucket::add_memory(
    std::vector<at::Tensor>& parameters,
    std::vector<at::Tensor>& masters,
    std::vector<at::Tensor>& gradients) const {
  const auto add = [](std::vector<at::Tensor>& to, const at::Tensor& tensor) {
    if (tensor.defined()) {
      to.push_back(tensor);
    }
  };
  add(parameters, values_);
  if (store_ && !store_->file()) {
    add(has_masters() ? masters : parameters, shard_);
  }
  if (quantized_) {
    add(parameters, quantized_->bytes());
  }
  if (store_) {
    add(parameters, store_->rounded());
  }
  add(parameters, format_.secondary());
  if (gradients_) {
    add(gradients, gradients_->shard_gradient());
  }
}

void ShardedBucket::bump_versions() {
  for (const at::Tensor& parameter : layout_.parameters) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

Pending ShardedBucket::start_gather(Source source) {
  format_.set_source(source);
  if (quantized_) {
    quantized_->end_writes();
  }
  if (source == Source::kSecondary) {
    return format_.gather_secondary(values());
  }
  if (quantized_) {
    return format_.gather_encoded(quantized_->bytes());
  }
  if (format_.is_rounded()) {
    return format_.gather_encoded(format_.encode(store_->on_device()));
  }
  if (!store_ || store_->is_on_device()) {
    return format_.gather_exact(values(), shard_);
  }
  return format_.gather_exact(values(), store_->on_device(own_part()));
}

void ShardedBucket::drop_secondary() {
  format_.drop_secondary();
  if (store_) {
    store_->mark_changed();
  }
}

void ShardedBucket::write_back() {
  at::Tensor own = own_part();
  if (format_.is_rounded()) {
    const at::Tensor received =
        quantized_ ? quantized_->dequantize() : format_.decode(format_.encode(store_->on_device()));
    const at::Tensor unwritten =
        own.eq(received).logical_or_(own.isnan().logical_and_(received.isnan()));
    if (quantized_) {
      if (!unwritten.all().item<bool>()) {
        quantized_->store(own);
      }
      return;
    }
    own = at::where(unwritten, store_->on_device(), own);
  }
  store_->store(own);
}

}  // namespace lockstep::zero
