// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/sharding.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/flat/coalesce.h"
#include "lockstep/sync/agreement.h"
#include "lockstep/sync/reducer.h"
#include "lockstep/sync/unfrozen.h"
#include "lockstep/zero/common_memory.h"
#include "lockstep/zero/parameter_groups.h"

namespace lockstep::zero {
namespace {

/// Buckets whose whole gradients exist at a time: one is filled, one travels, one may wait.
constexpr size_t kUnderWay = 3;

constexpr uint8_t kAddsToUsed = 2;

}  // namespace

Sharding::Sharding(
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const std::vector<std::vector<at::Tensor>>& groups,
    Group group,
    const ShardingOptions& options)
    : group_(std::move(group)),
      low_precision_policy_(options.low_precision_policy),
      untrained_(frozen_among(parameters)) {
  if (options.cap_bytes < 1 || options.first_cap_bytes < 1) {
    throw ConfigError(
        "zero",
        fmt::format(
            "a bucket needs at least one byte; got cap_bytes={}, first_cap_bytes={}",
            options.cap_bytes,
            options.first_cap_bytes));
  }
  const bool paged = options.placement == ParamPlacement::kSharded;
  const auto whole = persistent_parameters(
      parameters,
      paged ? options.keep_up_to_elements : std::numeric_limits<int64_t>::max(),
      paged ? options.keep_in_all : std::numeric_limits<int64_t>::max());
  const auto is_kept = [&](const NamedTensor& item) {
    return whole.contains(item.tensor.unsafeGetTensorImpl());
  };
  const NamedTensors frozen = paged ? sharded_though_frozen(parameters, whole) : NamedTensors();
  refuse_common_memory(joined(trainable(parameters), frozen), joined(parameters, buffers));
  start_alike(group_, parameters, buffers);
  if (options.broadcast_buffers) {
    buffers_ = tensors_of(buffers);
  }
  for (size_t unit = 0; unit < options.units.size(); ++unit) {
    for (const at::Tensor& parameter : options.units[unit]) {
      unit_of_[parameter.unsafeGetTensorImpl()] = unit;
    }
  }
  if (options.plus_plus.any() && !paged) {
    throw ConfigError(
        "zero",
        "ZeRO++ changes how the parameters of stage 3 travel; got parameters that are kept, "
        "expected paged ones; use stage 3");
  }
  if (!options.narrow.parameters.empty() &&
      ((options.plus_plus.quantized_weights && !options.narrow_gradients_only) ||
       options.plus_plus.quantized_gradients)) {
    throw ConfigError(
        "zero",
        "ZeRO++ rounds parameters to 8 bits, or gradients to 4, on their way; got some that are to "
        "travel in 16, too; leave one of them out");
  }
  if (options.offload.device != OffloadDevice::kNone && !paged) {
    throw ConfigError(
        "zero",
        "offload_param moves parameters that come and go; got parameters that are kept, expected "
        "paged ones; use stage 3");
  }
  if (paged) {
    NamedTensors divided = parameters;
    std::erase_if(divided, is_kept);
    make_room(places_, options.offload, divided, /*copies_stay=*/false);
    reduce_group_ = group_.split(0);
    coordinator_ = std::make_unique<ParamCoordinator>(group_, options.coordinator);
  } else {
    reduce_group_ = group_;
  }
  NamedTensors masters = with_masters(parameters, options.low_precision_policy);
  if (options.offload.device != OffloadDevice::kNone) {
    std::erase_if(masters, std::not_fn(is_kept));  // Of the others they are what `offload` moves.
  }
  if (!masters.empty()) {
    make_room(master_places_, options.offload_masters, masters, /*copies_stay=*/true);
  }
  comm_ = {
      .parameters = group_,
      .gradients = reduce_group_,
      .quantized_weights = options.plus_plus.quantized_weights,
      .quantized_gradients = options.plus_plus.quantized_gradients,
      .narrow_gradients_only = options.narrow_gradients_only,
      .plus_plus = PlusPlusGroups(group_, options.plus_plus)};
  for (const NamedTensors& items : by_group(trainable(parameters), groups)) {
    shards_.emplace_back();
    NamedTensors kept;
    NamedTensors comes_and_goes;
    for (const NamedTensor& item : items) {
      (is_kept(item) ? kept : comes_and_goes).push_back(item);
    }
    lay_out(comes_and_goes, options, ParamPlacement::kSharded);
    lay_out(kept, options, ParamPlacement::kReplicated);
  }
  page_frozen(frozen, options);
  speculative_begun_.resize(buckets_.size());
  present_.assign(parameters_.size(), false);
  held_.resize(parameters_.size());
  had_gradient_.assign(parameters_.size(), false);
  reset_backward();
}

/// Sets `places` up with room for this rank's part of `parameters`: on all ranks or, with an error,
/// on none. Collective where `options` name a disk.
void Sharding::make_room(
    std::optional<ShardPlaces>& places,
    const OffloadParam& options,
    const NamedTensors& parameters,
    bool copies_stay) {
  const auto make = [&] {
    places.emplace(options, copies_stay);
    places->reserve(parameters, group_.size(), low_precision_policy_);
  };
  if (options.device == OffloadDevice::kNvme) {
    fail_together(group_, "offload", "parameters cannot go to files", make);
  } else {
    make();
  }
}

/// Units by themselves, and what lies between two of them.
std::vector<flat::BucketPlan> Sharding::plan(
    const std::vector<at::Tensor>& tensors,
    const ShardingOptions& options,
    int64_t first_cap_bytes) const {
  constexpr size_t kNoUnit = std::numeric_limits<size_t>::max();
  const auto unit_of = [&](const at::Tensor& tensor) {
    const auto found = unit_of_.find(tensor.unsafeGetTensorImpl());
    return found == unit_of_.end() ? kNoUnit : found->second;
  };
  std::vector<flat::BucketPlan> plans;
  for (size_t end = tensors.size(); end > 0;) {
    const size_t unit = unit_of(tensors[end - 1]);
    size_t begin = end - 1;
    while (begin > 0 && unit_of(tensors[begin - 1]) == unit) {
      --begin;
    }
    const std::vector<at::Tensor> part(
        tensors.begin() + static_cast<int64_t>(begin), tensors.begin() + static_cast<int64_t>(end));
    constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
    const int64_t cap = unit == kNoUnit ? options.cap_bytes : kAny;
    const int64_t first = unit != kNoUnit ? kAny : plans.empty() ? first_cap_bytes : cap;
    for (flat::BucketPlan& bucket : flat::plan_buckets(part, cap, first, options.narrow)) {
      for (flat::BucketEntry& entry : bucket.entries) {
        entry.parameter += static_cast<int64_t>(begin);
      }
      plans.push_back(std::move(bucket));
    }
    end = begin;
  }
  return plans;
}

void Sharding::lay_out(
    const NamedTensors& items, const ShardingOptions& options, ParamPlacement placement) {
  const std::vector<at::Tensor> tensors = tensors_of(items);
  const size_t before = parameters_.size();
  bucket_of_.resize(before + items.size());
  for (const flat::BucketPlan& plan : plan(tensors, options, options.first_cap_bytes)) {
    std::vector<size_t>& members = members_.emplace_back();
    for (const flat::BucketEntry& entry : plan.entries) {
      members.push_back(before + static_cast<size_t>(entry.parameter));
      bucket_of_[members.back()] = buckets_.size();
    }
    const BucketComm travel = placement == ParamPlacement::kSharded
                                  ? comm_
                                  : BucketComm{
                                        .parameters = group_,
                                        .gradients = reduce_group_,
                                        .narrow_gradients_only = options.narrow_gradients_only};
    const at::Tensor& any = tensors[static_cast<size_t>(plan.entries.front().parameter)];
    const bool masters = update_dtype(any, options.low_precision_policy) != any.scalar_type() &&
                         options.offload.device == OffloadDevice::kNone;
    buckets_.push_back(std::make_unique<ShardedBucket>(
        plan,
        tensors,
        travel,
        placement,
        places(placement, masters),
        options.low_precision_policy));
    ShardedBucket& bucket = *buckets_.back();
    if (placement == ParamPlacement::kSharded) {
      coordinator_->add(bucket, items[static_cast<size_t>(plan.entries.back().parameter)].name);
    }
    Shard& shard = shards_.back().emplace_back(
        Shard{bucket.shard(), {}, bucket.shard_file(), bucket.divisions()});
    for (const ShardSlice& shard_slice : bucket.shard_slices()) {
      shard.shard_slices.push_back(shard_slice.values);
    }
    shard_of_.emplace_back(shards_.size() - 1, shards_.back().size() - 1);
    note_slices(bucket);
  }
  parameters_.insert(parameters_.end(), items.begin(), items.end());
}

void Sharding::note_slices(const ShardedBucket& bucket) {
  for (const at::Tensor& parameter : bucket.parameters()) {
    slices_of_.try_emplace(parameter.unsafeGetTensorImpl());  // Others may own all of it.
    if (bucket.has_masters() && !bucket.is_sharded_param()) {
      mastered_.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (const ShardSlice& shard_slice : bucket.shard_slices()) {
    slice_with_[shard_slice.values.unsafeGetTensorImpl()] = shard_slice;
    slices_of_[shard_slice.parameter.unsafeGetTensorImpl()].push_back(shard_slice.values);
  }
}

void Sharding::page_frozen(const NamedTensors& frozen, const ShardingOptions& options) {
  const std::vector<at::Tensor> tensors = tensors_of(frozen);
  BucketComm travel = comm_;
  travel.kept_in_8_bits = options.plus_plus.quantized_frozen;
  for (const flat::BucketPlan& plan : plan(tensors, options, options.cap_bytes)) {
    frozen_.push_back(std::make_unique<ShardedBucket>(
        plan, tensors, travel, ParamPlacement::kSharded, places(ParamPlacement::kSharded)));
    if (travel.kept_in_8_bits) {
      for (const at::Tensor& parameter : frozen_.back()->parameters()) {
        in_8_bits_[parameter.unsafeGetTensorImpl()] = frozen_.back().get();
      }
    }
    coordinator_->add(
        *frozen_.back(), frozen[static_cast<size_t>(plan.entries.back().parameter)].name);
    note_slices(*frozen_.back());
  }
}

void Sharding::look_after(std::unique_ptr<ShardedUnit> part, std::string name) {
  others_.push_back(std::move(part));
  coordinator_->add(*others_.back(), std::move(name));
}

void Sharding::watch() {
  // Hooks must not keep this alive: it owns them.
  const std::weak_ptr<Sharding> weak = weak_from_this();
  hooks_ = std::make_unique<BackwardHooks>(tensors_of(parameters_), [weak](size_t index) {
    if (const auto self = weak.lock()) {
      self->gradient_arrived(index);
    }
  });
}

void Sharding::reset_backward() {
  begun_ = false;
  expected_ = false;
  in_backward_ = false;
  next_bucket_ = 0;
  arrived_.assign(parameters_.size(), false);
  missing_.clear();
  for (const auto& bucket : buckets_) {
    missing_.push_back(bucket->entries().size());
  }
}

/// Else it stays with its parameter, for autograd to add to.
void Sharding::hold(size_t index) {
  const at::Tensor& parameter = parameters_[index].tensor;
  at::Tensor& gradient = parameter.mutable_grad();
  const bool holds = low_precision_policy_.fp32_masters && low_precision_policy_.fp32_gradients &&
                     is_trained_in_16_bits(parameter);
  if (!holds || !gradient.defined() || gradient.layout() != at::kStrided) {
    return;
  }
  at::Tensor& sum = held_[index];
  if (sum.defined()) {
    sum.add_(gradient);
  } else {
    sum = gradient.to(at::kFloat);
  }
  gradient.reset();
}

void Sharding::gradient_arrived(size_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  if (!sync_) {
    hold(index);
    return;
  }
  if (!in_backward_) {
    in_backward_ = true;
    BackwardHooks::at_end_of_backward([self = shared_from_this()] { self->finish_backward(); });
  }
  const at::Tensor& gradient = parameters_[index].tensor.grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    throw ConfigError(
        "zero",
        fmt::format(
            "{} got a sparse gradient; build its layer with sparse=false",
            parameters_[index].name));
  }
  const size_t bucket = bucket_of_[index];
  if (arrived_[index]) {
    if (bucket < next_bucket_ && gradient.defined()) {
      throw ConfigError(
          "zero",
          fmt::format(
              "{} got a second gradient within one backward, after the first was sent; a backward "
              "inside a backward is only possible within no_sync()",
              parameters_[index].name));
    }
    return;
  }
  arrived_[index] = true;
  --missing_[bucket];
  while (next_bucket_ < buckets_.size() && missing_[next_bucket_] == 0) {
    start(next_bucket_++);
  }
}

/// Gradients that an earlier backward left on this rank are taken along.
void Sharding::start(size_t index) {
  ShardedBucket& bucket = *buckets_[index];
  if (index == 0) {
    adds_to_used_ = adds_to_used();  // Before anything of this backward is added.
  }
  for (size_t before = 0; before < index; ++before) {
    ShardedBucket& earlier = *buckets_[before];
    const bool must_end = before + kUnderWay <= index;
    if (!coordinator_) {
      if (must_end || (early_.begin && earlier.is_reduced())) {
        earlier.wait_reduce();
        begin_speculative(before);
      }
      continue;
    }
    bool on_its_way = earlier.advance_reduce(/*wait=*/false);
    while (must_end && !(on_its_way && earlier.is_reduced())) {
      coordinator_->serve();  // Others may wait for us to bring a parameter before they reduce.
      on_its_way = earlier.advance_reduce(/*wait=*/false);
    }
    if (!on_its_way) {
      break;
    }
    if (earlier.is_reduced()) {
      earlier.wait_reduce();
      begin_speculative(before);
    }
  }
  discard_speculative(index);
  for (size_t entry = 0; entry < members_[index].size(); ++entry) {
    const size_t i = members_[index][entry];
    present_[i] = parameters_[i].tensor.grad().defined() || held_[i].defined();
    if (present_[i]) {
      bucket.take_gradient(entry, std::exchange(held_[i], {}));
    }
  }
  bucket.start_reduce();
}

void Sharding::begin_backward() {
  begun_ = true;
  expected_ = sync_;
}

void Sharding::finish_backward() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (in_backward_ || expected_) {
    finish_locked();
  } else if (begun_ && coordinator_) {
    begun_ = false;
    coordinator_->wait_for_all();  // Others may not be done, and want parameters brought.
  }
}

/// [parameter] Whether any rank had a gradient, 0 or 1; the first is more if any adds to what a
/// step has used. Collective.
Pending Sharding::start_presence() {
  at::Tensor flags = at::empty({static_cast<int64_t>(present_.size())}, at::kByte);
  auto* values = flags.mutable_data_ptr<uint8_t>();
  std::copy(present_.begin(), present_.end(), values);
  if (adds_to_used_) {
    values[0] = kAddsToUsed;
  }
  return group_.all_reduce(flags, ReduceOp::kMax);
}

void Sharding::finish_locked() {
  const c10::AutoGradMode no_grad(false);
  try {
    while (next_bucket_ < buckets_.size()) {
      start(next_bucket_++);
    }
    if (coordinator_) {
      coordinator_->wait_for_all(backwards_);
    }
    Pending presence = start_presence();  // Right behind the last bucket: one waiting for both.
    for (const auto& bucket : buckets_) {
      bucket->advance_reduce(/*wait=*/true);
    }
    const at::Tensor present = presence.wait();
    const auto* anywhere = present.const_data_ptr<uint8_t>();
    if (!present_.empty() && anywhere[0] == kAddsToUsed) {
      for (const auto& bucket : buckets_) {
        bucket->abandon(/*wait=*/true);
      }
      throw ConfigError(
          "zero",
          "backward after step() would add to gradients that this step has used already, which "
          "lie with each rank's pieces of the parameters, where the model's own zero_grad() does "
          "not reach them; call optimizer.zero_grad(), of the prepared optimizer, after each "
          "step()");
    }
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      std::vector<bool> of_slots;
      for (const size_t parameter : members_[bucket]) {
        of_slots.push_back(anywhere[parameter] != 0);
        had_gradient_[parameter] = had_gradient_[parameter] || anywhere[parameter] != 0;
      }
      buckets_[bucket]->finish_reduce(of_slots);
    }
    flat::broadcast_coalesced(group_, buffers_);
    used_.clear();
  } catch (...) {
    discard_speculative(/*only_if_written=*/false);
    for (const auto& bucket : buckets_) {
      bucket->abandon(/*wait=*/false);
    }
    ++backwards_;
    reset_backward();
    throw;
  }
  ++backwards_;
  reset_backward();
}

void Sharding::abandon_backward() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  discard_speculative(/*only_if_written=*/false);
  for (const auto& bucket : buckets_) {
    bucket->abandon(/*wait=*/true);
  }
  if (coordinator_) {
    coordinator_->abandon();
  }
  if (next_bucket_ > 0) {
    ++backwards_;  // What it sent is out of step with ranks on which it did not fail.
  }
  reset_backward();
}

void Sharding::check_in_place() const {
  refuse_unfrozen(untrained_, "zero");
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (size_t entry = 0; entry < members_[bucket].size(); ++entry) {
      if (!buckets_[bucket]->lies_here(entry)) {
        throw ConfigError(
            "optimizer",
            fmt::format(
                "{} is not what is trained: ZeRO updates the memory that prepare() gave it; got "
                "other memory since (set_data, Module::to, loading into another dtype), expected "
                "it to stay; change its values with copy_, or move and convert the model before "
                "prepare()",
                parameters_[members_[bucket][entry]].name));
      }
    }
  }
}

void Sharding::finish_parameter_use() {
  if (coordinator_) {
    coordinator_->wait_for_all(
        ParamCoordinator::kUpdate);  // Others may still read, and want what is here as it is.
    coordinator_->release_all();
  }
  write_back_masters();
  discard_speculative(/*only_if_written=*/true);
  note_finished();
}

void Sharding::write_back() {
  if (coordinator_) {
    coordinator_->write_back();
  }
  write_back_masters();
}

void Sharding::write_back_masters() {
  const c10::AutoGradMode no_grad(false);
  for (const auto& bucket : buckets_) {
    if (bucket->has_masters() && !bucket->is_sharded_param()) {
      bucket->write_back();
    }
  }
}

void Sharding::gather_parameters() {
  const c10::AutoGradMode no_grad(false);
  if (coordinator_) {
    coordinator_->drop_secondary_shards();
  }
  std::vector<Pending> pending;
  pending.reserve(buckets_.size());
  for (const auto& bucket : buckets_) {
    bucket->bump_versions();
    if (!bucket->is_sharded_param()) {
      pending.push_back(bucket->start_gather(Source::kExact));
    }
  }
  for (Pending& each : pending) {
    each.wait();
  }
  note_finished();
}

}  // namespace lockstep::zero
