// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/sharded_bucket.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep::zero {
namespace {

// A shard begins on a cache line, and is made of whole vectors of any dtype.
constexpr int64_t kGrain = 64;

constexpr const char* kUntouchable =
    "[zero] this parameter's values are not here: under ZeRO stage 3 each rank has a part of them, "
    "and operations bring them together, but its memory was read past all operations (data_ptr, "
    "accessor, serialisation); do that within Accelerator::with_gathered_parameters, or save with "
    "save_model or save_state";

int64_t shard_length(int64_t numel, int size) {
  const int64_t each = (numel + size - 1) / size;
  return (each + kGrain - 1) / kGrain * kGrain;
}

}  // namespace

ShardedBucket::ShardedBucket(
    const flat::BucketPlan& plan,
    const std::vector<at::Tensor>& parameters,
    BucketComm travel,
    ParamPlacement placement,
    ShardPlaces* places,
    const LowPrecisionPolicy& low_precision_policy)
    : comm_(std::move(travel)), slots_(plan.entries), taken_(plan.entries.size(), false) {
  const c10::AutoGradMode no_grad(false);
  const Group& group = comm_.parameters;
  const bool travels = group.size() > 1 && !comm_.kept_in_8_bits;
  const std::optional<at::ScalarType> narrow = travels ? plan.comm_dtype : std::nullopt;
  if (!comm_.narrow_gradients_only) {
    narrow_ = narrow;
  }
  const int64_t part = shard_length(plan.numel, group.size());
  length_ = part * group.size();
  first_ = part * group.rank();
  options_ = parameters[slots_[0].parameter].detach().options();
  if (placement == ParamPlacement::kSharded) {
    paged_ = std::make_unique<FlatParamBuffer>(length_, options_, kUntouchable);
  } else {
    values_ = group.empty({length_}, options_).zero_();
  }
  const at::Tensor& any = parameters[slots_[0].parameter];
  const at::ScalarType updated_in = update_dtype(any, low_precision_policy);
  const bool masters = updated_in != any.scalar_type() && !comm_.kept_in_8_bits;
  gradient_options_ = narrow                                      ? options_.dtype(narrow)
                      : masters && low_precision_policy.fp32_comm ? options_.dtype(at::kFloat)
                                                                  : options_;
  rounds_sums_ = masters && low_precision_policy.rounded_sums;
  if (comm_.kept_in_8_bits) {
    shard_ = at::zeros({part}, options_);  // Until it is rounded, below.
  } else if (paged_ || masters) {
    const ShardPlaces::Place place = places != nullptr ? places->next(part) : ShardPlaces::Place();
    store_ = std::make_unique<ShardStore>(group, part, options_, updated_in, place);
    shard_ = store_->values();
    if (paged_ && masters && place.copy_stays && store_->is_elsewhere()) {
      rounded_masters_ = group.empty({part}, options_);
    }
  } else {
    shard_ = values_.narrow(0, first_, part);
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    const flat::BucketEntry& entry = slots_[i];
    at::Tensor parameter = parameters[entry.parameter];
    // Of what was built in parts all ranks must bring all, also those who own nothing of it here.
    const Gathered whole({parameter}, /*writes=*/false);
    const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kShardedParamKey);
    const auto [begin, end] = own_range(entry);
    at::Tensor own;
    if (begin < end) {
      own = shard_.narrow(0, begin - first_, end - begin);
    }
    if ((store_ || comm_.kept_in_8_bits) && own.defined()) {
      own.copy_(parameter.reshape({-1}).narrow(0, begin - entry.offset, end - begin));
    }
    if (paged_) {
      parameter.set_data(paged_->view(entry.offset, parameter.sizes()));
    } else {
      const at::Tensor place = values_.narrow(0, entry.offset, entry.numel).view(parameter.sizes());
      place.copy_(parameter);
      parameter.set_data(place);
    }
    parameters_.push_back(parameter);
    if (own.defined() && !comm_.kept_in_8_bits) {
      // A leaf of its own: views of what requires gradients could not be updated.
      const at::Tensor values = own.variable_data();
      values.set_requires_grad(parameter.requires_grad());
      slices_.push_back({parameter, begin - entry.offset, values});
      entry_of_slice_.push_back(i);
    }
  }
  if (shard_file()) {
    shard_file()->release_pages();
  }
  if (comm_.kept_in_8_bits) {
    kept_ = rounded(std::exchange(shard_, {}));
  }
}

std::pair<int64_t, int64_t> ShardedBucket::own_range(const flat::BucketEntry& entry) const {
  return {
      std::max(entry.offset, first_), std::min(entry.offset + entry.numel, first_ + shard_numel())};
}

std::vector<ShardSlice> ShardedBucket::unpacked() const {
  std::vector<ShardSlice> copies;
  if (!kept_.defined()) {
    return copies;
  }
  const at::Tensor all = unrounded(kept_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto [begin, end] = own_range(slots_[i]);
    if (begin < end) {
      copies.push_back(
          {parameters_[i],
           begin - slots_[i].offset,
           all.narrow(0, begin - first_, end - begin).clone()});
    }
  }
  return copies;
}

void ShardedBucket::pack(const ShardSlice& copy) {
  // Parameters share blocks, and come one by one: rounded each time together with what is to be
  // overwritten, they would be on the grid of that. So all stay exact until they travel.
  if (!shard_.defined()) {
    shard_ = unrounded(kept_);
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (parameters_[i].is_same(copy.parameter)) {
      const at::Tensor place =
          shard_.narrow(0, own_range(slots_[i]).first - first_, copy.values.numel());
      // What was rounded already stays as it is, to the bit.
      if (!place.equal(copy.values)) {
        place.copy_(copy.values);
        kept_ = rounded(shard_);
      }
    }
  }
}

bool ShardedBucket::lies_here(size_t entry) const {
  const c10::TensorImpl& parameter = *parameters_[entry].unsafeGetTensorImpl();
  const c10::TensorImpl& here = *values().unsafeGetTensorImpl();
  return parameter.has_storage() &&
         parameter.unsafe_storage().unsafeGetStorageImpl() ==
             here.unsafe_storage().unsafeGetStorageImpl() &&
         parameter.storage_offset() == here.storage_offset() + slots_[entry].offset;
}

std::vector<flat::ShardBounds> ShardedBucket::divisions() const {
  std::vector<flat::ShardBounds> all;
  for (size_t entry = 0; entry < slots_.size(); ++entry) {
    flat::ShardBounds& division = all.emplace_back();
    division.sizes = parameters_[entry].sizes().vec();
    for (int64_t end = 0; end <= length_; end += shard_numel()) {
      division.bounds.push_back(
          std::clamp(end - slots_[entry].offset, int64_t{0}, slots_[entry].numel));
    }
  }
  return all;
}

at::Tensor ShardedBucket::whole_gradient(size_t entry) {
  if (!gradients_.defined()) {
    gradients_ = at::empty({length_}, gradient_options_);
  }
  return gradients_.narrow(0, slots_[entry].offset, slots_[entry].numel);
}

at::Tensor ShardedBucket::shard_gradient(const ShardSlice& shard_slice) const {
  return shard_gradient_.narrow(
      0, shard_slice.values.storage_offset() - shard_.storage_offset(), shard_slice.values.numel());
}

bool ShardedBucket::has_gradients() const {
  return std::any_of(slices_.begin(), slices_.end(), [](const ShardSlice& shard_slice) {
    return shard_slice.values.grad().defined();
  });
}

void ShardedBucket::take_gradient(size_t entry, const at::Tensor& held) {
  at::Tensor& gradient = parameters_[entry].mutable_grad();
  const at::Tensor place = whole_gradient(entry).view(parameters_[entry].sizes());
  if (!held.defined()) {
    place.copy_(gradient);
  } else {
    place.copy_(gradient.defined() ? at::add(held, gradient) : held);
  }
  gradient.reset();
  taken_[entry] = true;
}

void ShardedBucket::start_reduce() {
  int64_t end = 0;  // Of what has values; the gaps between travel, too.
  for (size_t entry = 0; entry < slots_.size(); ++entry) {
    const at::Tensor gradient = whole_gradient(entry);
    gradients_.narrow(0, end, slots_[entry].offset - end).zero_();
    if (!taken_[entry]) {
      gradient.zero_();
    }
    end = slots_[entry].offset + slots_[entry].numel;
  }
  gradients_.narrow(0, end, gradients_.numel() - end).zero_();
  if (!has_gradients() && come_as_kept()) {
    reduced_ = std::move(shard_gradient_);  // Nothing is to be added to.
  }
  if (!reduced_.defined()) {
    reduced_ = at::empty(shard_.sizes(), gradient_options_);
  }
  if (comm_.quantized_gradients) {
    quantized_ = std::make_unique<QuantizedReduction>(
        comm_.plus_plus.within, comm_.plus_plus.between, gradients_);
    gradients_.reset();
  } else {
    pending_ = comm_.gradients.reduce_scatter_into(reduced_, gradients_, ReduceOp::kAvg);
  }
}

void ShardedBucket::wait_reduce() {
  if (quantized_) {
    quantized_->finish(reduced_);
    quantized_.reset();
  }
  if (pending_) {
    pending_->wait();
    pending_.reset();
    gradients_.reset();
  }
}

const at::Tensor& ShardedBucket::add_average(bool may_be_abandoned) {
  if (std::exchange(added_, true)) {
    return shard_gradient_;
  }
  wait_reduce();
  if (!has_gradients() && come_as_kept()) {
    shard_gradient_ = std::move(reduced_);
  } else if (!has_gradients()) {
    if (!shard_gradient_.defined()) {
      shard_gradient_ = at::empty(shard_.sizes(), options_.dtype(shard_.scalar_type()));
    }
    shard_gradient_.copy_(reduced_);
    reduced_.reset();
  } else {
    for (const ShardSlice& shard_slice : slices_) {
      if (!shard_slice.values.grad()
               .defined()) {  // Dropped since: what is there still is of before.
        shard_gradient(shard_slice).zero_();
      }
    }
    if (may_be_abandoned) {
      before_ = shard_gradient_;
      shard_gradient_ = at::add(before_, reduced_);
    } else {
      shard_gradient_.add_(reduced_);
    }
    if (rounds_sums_) {
      shard_gradient_.copy_(shard_gradient_.to(c10::typeMetaToScalarType(options_.dtype())));
    }
    reduced_.reset();
  }
  return shard_gradient_;
}

void ShardedBucket::finish_reduce(const std::vector<bool>& anywhere) {
  add_average();
  added_ = false;
  before_.reset();
  taken_.assign(slots_.size(), false);
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (anywhere[entry_of_slice_[i]] || slices_[i].values.grad().defined()) {
      slices_[i].values.mutable_grad() = shard_gradient(slices_[i]);
    }
  }
}

void ShardedBucket::add_memory(
    std::vector<at::Tensor>& parameters,
    std::vector<at::Tensor>& masters,
    std::vector<at::Tensor>& gradients) const {
  if (!paged_) {
    parameters.push_back(values_);
  }
  if (store_ && !store_->file()) {
    (has_masters() ? masters : parameters).push_back(shard_);
  }
  if (kept_.defined()) {
    parameters.push_back(kept_);
  }
  if (rounded_masters_.defined()) {
    parameters.push_back(rounded_masters_);
  }
  if (secondary_.defined()) {
    parameters.push_back(secondary_);
  }
  if (shard_gradient_.defined()) {
    gradients.push_back(shard_gradient_);
  }
}

void ShardedBucket::abandon(bool wait) noexcept {
  if (wait) {
    try {
      wait_reduce();
    } catch (const std::exception&) {
      // The caller is about to report what came first.
    }
  }
  pending_.reset();
  quantized_.reset();
  gradients_.reset();
  reduced_.reset();
  added_ = false;
  if (before_.defined()) {
    shard_gradient_ = std::exchange(before_, {});
  }
  taken_.assign(slots_.size(), false);
}

void ShardedBucket::bump_versions() {
  for (const at::Tensor& parameter : parameters_) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lockstep::zero
