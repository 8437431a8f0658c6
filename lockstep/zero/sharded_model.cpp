// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/sharded_model.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>

#include <fmt/format.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/flat/parameters.h"
#include "lockstep/sync/agreement.h"

namespace lockstep::zero {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// Returns the trainable parameters of each optimizer group, in their order in `all`. Throws
/// ConfigError for a trainable parameter without a group, and for a parameter of a group that is
/// not in `all`, unless it has no elements.
std::vector<NamedTensors> by_group(
    const NamedTensors& all, const std::vector<std::vector<at::Tensor>>& groups) {
  std::map<const at::TensorImpl*, size_t> group_of;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& parameter : groups[group]) {
      group_of[parameter.unsafeGetTensorImpl()] = group;
    }
  }
  std::vector<NamedTensors> sorted(groups.size());
  for (const NamedTensor& item : all) {
    const auto found = group_of.find(item.tensor.unsafeGetTensorImpl());
    if (found == group_of.end()) {
      throw ConfigError(
          "zero",
          fmt::format(
              "{} requires gradients, but no optimizer of this prepare() has it; add it to one, or "
              "freeze it",
              item.name));
    }
    sorted[found->second].push_back(item);
    group_of.erase(found);
  }
  if (std::any_of(group_of.begin(), group_of.end(), [](const auto& item) {
        return item.first->requires_grad() && item.first->numel() > 0;
      })) {
    throw ConfigError(
        "zero",
        "an optimizer has a parameter that the prepared model does not have; prepare one model "
        "that has all parameters of its optimizers");
  }
  return sorted;
}

/// Returns the trained parameters that are updated in another dtype than their own.
NamedTensors with_masters(const NamedTensors& all, const LowPrecisionPolicy& low_precision_policy) {
  NamedTensors found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const NamedTensor& item) {
    return update_dtype(item.tensor, low_precision_policy) != item.tensor.scalar_type();
  });
  return found;
}

NamedTensors concatenated(NamedTensors first, const NamedTensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Plans the buckets of `tensors`: each unit has its own, and the tensors between two units have
/// others.
std::vector<flat::BucketPlan> plan_unit_buckets(
    const std::vector<at::Tensor>& tensors,
    const ShardingOptions& options,
    int64_t first_cap_bytes) {
  constexpr size_t kNoUnit = std::numeric_limits<size_t>::max();
  std::map<const at::TensorImpl*, size_t> units;
  for (size_t unit = 0; unit < options.units.size(); ++unit) {
    for (const at::Tensor& parameter : options.units[unit]) {
      units[parameter.unsafeGetTensorImpl()] = unit;
    }
  }
  const auto unit_of = [&](const at::Tensor& tensor) {
    const auto found = units.find(tensor.unsafeGetTensorImpl());
    return found == units.end() ? kNoUnit : found->second;
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
    const int64_t cap = unit == kNoUnit ? options.cap_bytes : kUnlimited;
    const int64_t first = unit != kNoUnit ? kUnlimited : plans.empty() ? first_cap_bytes : cap;
    for (flat::BucketPlan& bucket : flat::plan_buckets(part, cap, first, options.comm_dtypes)) {
      for (flat::BucketEntry& entry : bucket.entries) {
        entry.parameter += static_cast<int64_t>(begin);
      }
      plans.push_back(std::move(bucket));
    }
    end = begin;
  }
  return plans;
}

ShardPlaces* pointer_to(std::optional<ShardPlaces>& places) {
  return places ? &*places : nullptr;
}

const std::string& last_name(const NamedTensors& items, const flat::BucketPlan& plan) {
  return items[static_cast<size_t>(plan.entries.back().parameter)].name;
}

/// Connects the groups on the device. A group's first operation there waits for all ranks, and in a
/// backward some of them may wait for an exchange of the coordinator.
void connect(const BucketComm& comm, at::Device device) {
  if (device.is_cpu()) {
    return;
  }
  for (Group group :
       {comm.parameter_group,
        comm.gradient_group,
        comm.plus_plus.hpz,
        comm.plus_plus.within,
        comm.plus_plus.between}) {
    if (group.size() > 1) {
      group.all_reduce(at::zeros({1}, at::TensorOptions(device))).wait();
    }
  }
}

/// Returns the bounds of a subgroup's ranks as those of all ranks, of which the others own nothing.
/// Collective in the subgroup.
std::vector<flat::ShardBounds> in_group(
    std::vector<flat::ShardBounds> bounds, Group subgroup, const Group& group) {
  const at::Tensor ranks = subgroup.all_gather(at::full({1}, group.rank(), at::kInt)).wait();
  for (flat::ShardBounds& each : bounds) {
    std::vector<int64_t> all = {0};
    for (int rank = 0, member = 0; rank < group.size(); ++rank) {
      const bool is_member =
          member < subgroup.size() && ranks.const_data_ptr<int>()[member] == rank;
      member += is_member ? 1 : 0;
      all.push_back(each.bounds[static_cast<size_t>(member)]);
    }
    each.bounds = std::move(all);
  }
  return bounds;
}

}  // namespace

std::set<const at::TensorImpl*> persistent_parameters(
    const NamedTensors& all, int64_t up_to, int64_t in_all) {
  std::set<const at::TensorImpl*> kept;
  int64_t left = in_all;
  for (const NamedTensor& item : all) {
    const int64_t numel = item.tensor.numel();
    if (numel <= std::min(up_to, left) && kept.insert(item.tensor.unsafeGetTensorImpl()).second) {
      left -= numel;
    }
  }
  return kept;
}

ShardedModel::ShardedModel(
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const std::vector<std::vector<at::Tensor>>& groups,
    Group group,
    const ShardingOptions& options)
    : group_(std::move(group)),
      subgroup_(options.subgroup.group),
      untrained_(frozen_among(parameters)) {
  check_options(options);
  for (const at::Tensor& parameter : options.subgroup.parameters) {
    in_subgroup_.insert(parameter.unsafeGetTensorImpl());
  }
  const bool sharded = options.placement == ParamPlacement::kSharded;
  ParameterSet persistent = persistent_parameters(
      parameters,
      sharded ? options.param_persistence_threshold : kUnlimited,
      sharded ? options.model_persistence_threshold : kUnlimited);
  persistent.insert(in_subgroup_.begin(), in_subgroup_.end());
  NamedTensors frozen;
  if (sharded) {
    frozen = untrained_;
    std::erase_if(frozen, [&](const NamedTensor& item) {
      return item.tensor.layout() != at::kStrided || has(persistent, item);
    });
  }
  refuse_common_memory(
      concatenated(trainable(parameters), frozen), concatenated(parameters, buffers));
  NamedTensors common = parameters;
  NamedTensors of_subgroup = parameters;
  std::erase_if(common, [&](const NamedTensor& item) { return has(in_subgroup_, item); });
  std::erase_if(of_subgroup, [&](const NamedTensor& item) { return !has(in_subgroup_, item); });
  broadcast_initial_values(group_, common, buffers);
  broadcast_initial_values(subgroup_, of_subgroup, {});
  prepare(parameters, persistent, options);
  for (const NamedTensors& items : by_group(trainable(parameters), groups)) {
    shards_.emplace_back();
    NamedTensors replicated_items;
    NamedTensors sharded_items;
    NamedTensors subgroup_items;
    for (const NamedTensor& item : items) {
      (has(in_subgroup_, item) ? subgroup_items
       : has(persistent, item) ? replicated_items
                               : sharded_items)
          .push_back(item);
    }
    add_trained(sharded_items, options, ParamPlacement::kSharded);
    add_trained(replicated_items, options, ParamPlacement::kReplicated);
    add_trained(subgroup_items, options, ParamPlacement::kReplicated);
  }
  add_frozen(frozen, options);
}

void ShardedModel::prepare(
    const NamedTensors& parameters,
    const ParameterSet& persistent,
    const ShardingOptions& options) {
  const auto is_persistent = [&](const NamedTensor& item) { return has(persistent, item); };
  Group reduce_group = group_;
  if (options.placement == ParamPlacement::kSharded) {
    NamedTensors sharded = parameters;
    std::erase_if(sharded, is_persistent);
    reserve(
        shard_places_,
        options.offload,
        options.low_precision_policy,
        sharded,
        group_.size(),
        /*keep_rounded_on_device=*/false);
    // Gradients have a separate group: parameters are gathered in the order of operations.
    reduce_group = group_.split(0);
    coordinator_ = std::make_unique<ParamCoordinator>(group_, options.coordinator);
  }
  NamedTensors masters = with_masters(parameters, options.low_precision_policy);
  if (options.offload.device != OffloadDevice::kNone) {
    std::erase_if(masters, std::not_fn(is_persistent));  // The others are in `shard_places_`.
  }
  NamedTensors of_subgroup;
  std::erase_if(masters, [&](const NamedTensor& item) {
    const bool is_in_subgroup = has(in_subgroup_, item);
    if (is_in_subgroup) {
      of_subgroup.push_back(item);
    }
    return is_in_subgroup;
  });
  const auto reserve_masters =
      [&](std::optional<ShardPlaces>& places, const NamedTensors& items, int ranks) {
        if (!items.empty()) {
          reserve(
              places,
              options.offload_masters,
              options.low_precision_policy,
              items,
              ranks,
              /*keep_rounded_on_device=*/true);
        }
      };
  reserve_masters(master_places_, masters, group_.size());
  reserve_masters(subgroup_places_, of_subgroup, subgroup_.size());
  comm_ = {
      .parameter_group = group_,
      .gradient_group = reduce_group,
      .quantized_weights = options.plus_plus.quantized_weights,
      .quantized_gradients = options.plus_plus.quantized_gradients,
      .comm_dtype_for_gradients_only = options.comm_dtypes_for_gradients_only,
      .plus_plus = PlusPlusGroups(group_, options.plus_plus)};
  if (coordinator_ && !parameters.empty()) {
    connect(comm_, parameters[0].tensor.device());
    connect(
        {.parameter_group = subgroup_, .gradient_group = subgroup_}, parameters[0].tensor.device());
  }
}

void ShardedModel::reserve(
    std::optional<ShardPlaces>& places,
    const OffloadParam& options,
    const LowPrecisionPolicy& low_precision_policy,
    const NamedTensors& parameters,
    int ranks,
    bool keep_rounded_on_device) {
  const auto create = [&] {
    places.emplace(options, keep_rounded_on_device);
    places->reserve(parameters, ranks, low_precision_policy);
  };
  if (options.device == OffloadDevice::kNvme) {
    fail_together(group_, "offload", "parameters cannot be stored in files", create);
  } else {
    create();
  }
}

BucketComm ShardedModel::comm_of(const NamedTensors& items, ParamPlacement placement) const {
  if (placement == ParamPlacement::kSharded) {
    return comm_;
  }
  const bool is_in_subgroup = !items.empty() && has(in_subgroup_, items[0]);
  return {
      .parameter_group = is_in_subgroup ? subgroup_ : comm_.parameter_group,
      .gradient_group = is_in_subgroup ? subgroup_ : comm_.gradient_group,
      .comm_dtype_for_gradients_only = comm_.comm_dtype_for_gradients_only};
}

void ShardedModel::add_trained(
    const NamedTensors& items, const ShardingOptions& options, ParamPlacement placement) {
  const std::vector<at::Tensor> tensors = tensors_of(items);
  const bool sharded = placement == ParamPlacement::kSharded;
  const BucketComm comm = comm_of(items, placement);
  std::optional<ShardPlaces>& masters =
      !items.empty() && has(in_subgroup_, items[0]) ? subgroup_places_ : master_places_;
  for (const flat::BucketPlan& plan :
       plan_unit_buckets(tensors, options, options.first_cap_bytes)) {
    std::vector<size_t>& members = members_.emplace_back();
    for (const flat::BucketEntry& entry : plan.entries) {
      members.push_back(parameters_.size() + static_cast<size_t>(entry.parameter));
    }
    const at::Tensor& first = tensors[static_cast<size_t>(plan.entries.front().parameter)];
    const bool masters_apart =
        update_dtype(first, options.low_precision_policy) != first.scalar_type() &&
        options.offload.device == OffloadDevice::kNone;
    buckets_.push_back(std::make_unique<ShardedBucket>(
        plan,
        tensors,
        comm,
        placement,
        pointer_to(sharded && !masters_apart ? shard_places_ : masters),
        options.low_precision_policy));
    if (sharded) {
      coordinator_->add(*buckets_.back(), last_name(items, plan));
    }
    add_shard(*buckets_.back());
  }
  parameters_.insert(parameters_.end(), items.begin(), items.end());
}

void ShardedModel::add_shard(ShardedBucket& bucket) {
  const bool is_in_subgroup = in_subgroup_.contains(bucket.parameters()[0].unsafeGetTensorImpl());
  Shard& shard = shards_.back().emplace_back(Shard{
      bucket.shard(),
      {},
      bucket.shard_file(),
      is_in_subgroup ? in_group(bucket.shard_bounds(), subgroup_, group_) : bucket.shard_bounds()});
  for (const ShardSlice& shard_slice : bucket.shard_slices()) {
    shard.shard_slices.push_back(shard_slice.values);
  }
  shard_of_.emplace_back(shards_.size() - 1, shards_.back().size() - 1);
  slices_.add(bucket);
}

void ShardedModel::add_frozen(const NamedTensors& frozen, const ShardingOptions& options) {
  const std::vector<at::Tensor> tensors = tensors_of(frozen);
  BucketComm comm = comm_;
  comm.quantized_storage = options.plus_plus.quantized_frozen;
  for (const flat::BucketPlan& plan : plan_unit_buckets(tensors, options, options.cap_bytes)) {
    frozen_.push_back(std::make_unique<ShardedBucket>(
        plan, tensors, comm, ParamPlacement::kSharded, pointer_to(shard_places_)));
    coordinator_->add(*frozen_.back(), last_name(frozen, plan));
    slices_.add(*frozen_.back());
  }
}

void ShardedModel::manage(std::unique_ptr<ShardedUnit> unit, std::string name) {
  managed_.push_back(std::move(unit));
  coordinator_->add(*managed_.back(), std::move(name));
}

void ShardedModel::check_not_moved() const {
  refuse_unfrozen(untrained_, "zero");
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (size_t entry = 0; entry < members_[bucket].size(); ++entry) {
      if (!buckets_[bucket]->is_in_bucket(entry)) {
        throw ConfigError(
            "optimizer",
            fmt::format(
                "the optimizer no longer updates {}: its memory was replaced after prepare() "
                "(set_data, Module::to, loading into another dtype); expected parameters to keep "
                "their memory; change values with copy_, or move and convert the model before "
                "prepare()",
                parameters_[members_[bucket][entry]].name));
      }
    }
  }
}

void ShardedModel::check_alive() const {
  comm_.parameter_group.check_alive();
  comm_.gradient_group.check_alive();
  subgroup_.check_alive();
  comm_.plus_plus.check_alive();
}

bool ShardedModel::has_masters() const {
  return std::any_of(
      buckets_.begin(), buckets_.end(), [](const auto& bucket) { return bucket->has_masters(); });
}

void ShardedModel::add_memory(
    std::vector<at::Tensor>& parameters,
    std::vector<at::Tensor>& masters,
    std::vector<at::Tensor>& gradients) const {
  for (const auto* const buckets : {&buckets_, &frozen_}) {
    for (const auto& bucket : *buckets) {
      bucket->add_memory(parameters, masters, gradients);
    }
  }
}

}  // namespace lockstep::zero
