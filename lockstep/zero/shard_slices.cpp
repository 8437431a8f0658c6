// SPDX-License-Identifier: Apache-2.0
// What a rank has of the parameters and gradients, for who asks.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/pow.h>
#include <c10/core/GradMode.h>

#include "lockstep/zero/sharding.h"

namespace lockstep::zero {

std::vector<at::Tensor> Sharding::held_gradients() const {
  std::vector<at::Tensor> all;
  std::copy_if(held_.begin(), held_.end(), std::back_inserter(all), [](const at::Tensor& held) {
    return held.defined();
  });
  return all;
}

void Sharding::mark_gradients_used() {
  used_.clear();
  for (const auto& bucket : buckets_) {
    for (const ShardSlice& shard_slice : bucket->shard_slices()) {
      const at::Tensor& gradient = shard_slice.values.grad();
      if (gradient.defined()) {
        used_.push_back(
            {shard_slice.values,
             gradient.unsafeGetTensorImpl(),
             static_cast<int64_t>(gradient._version())});
      }
    }
  }
}

/// One that a program has dropped since, or written to, zeroed say, is what it wants to add to.
bool Sharding::adds_to_used() const {
  return std::any_of(used_.begin(), used_.end(), [](const Used& used) {
    const at::Tensor& gradient = used.shard_slice.grad();
    return gradient.defined() && gradient.unsafeGetTensorImpl() == used.gradient &&
           static_cast<int64_t>(gradient._version()) == used.version;
  });
}

void Sharding::drop_gradients() {
  discard_speculative(/*only_if_written=*/false);
  used_.clear();
  held_.assign(parameters_.size(), at::Tensor());
  for (const NamedTensor& item : parameters_) {
    item.tensor.mutable_grad().reset();
  }
  for (const auto& bucket : buckets_) {
    for (const ShardSlice& shard_slice : bucket->shard_slices()) {
      shard_slice.values.mutable_grad().reset();
    }
  }
  had_gradient_.assign(parameters_.size(), false);
}

std::vector<std::string> Sharding::without_gradient() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!had_gradient_[i]) {
      names.push_back(parameters_[i].name);
    }
  }
  return names;
}

Sharding::Memory Sharding::memory() const {
  Memory memory;
  for (const auto* const buckets : {&buckets_, &frozen_}) {
    for (const auto& bucket : *buckets) {
      bucket->add_memory(memory.parameters, memory.masters, memory.gradients);
    }
  }
  for (const NamedTensor& item : parameters_) {
    if (item.tensor.grad().defined()) {
      memory.gradients.push_back(item.tensor.grad());
    }
  }
  for (at::Tensor& held : held_gradients()) {
    memory.gradients.push_back(std::move(held));
  }
  return memory;
}

std::vector<at::Tensor> Sharding::slices_of(const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> all;
  std::set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    const auto found = slices_of_.find(parameter.unsafeGetTensorImpl());
    if (found == slices_of_.end()) {
      all.push_back(parameter);
    } else {
      all.insert(all.end(), found->second.begin(), found->second.end());
    }
  }
  return all;
}

std::vector<ShardSlice> Sharding::saved_slices(const at::Tensor& parameter) const {
  std::vector<ShardSlice> shard_slices;
  const auto packed = in_8_bits_.find(parameter.unsafeGetTensorImpl());
  if (packed != in_8_bits_.end()) {
    shard_slices = packed->second->unpacked();
    std::erase_if(shard_slices, [&](const ShardSlice& shard_slice) {
      return !shard_slice.parameter.is_same(parameter);
    });
    return shard_slices;
  }
  for (const at::Tensor& values : slices_of({parameter})) {
    shard_slices.push_back(*slice_with(values));
  }
  return shard_slices;
}

bool Sharding::is_kept_in_8_bits(const at::Tensor& parameter) const {
  return in_8_bits_.contains(parameter.unsafeGetTensorImpl());
}

void Sharding::pack(const std::vector<ShardSlice>& copies) {
  const c10::AutoGradMode no_grad(false);
  for (const ShardSlice& copy : copies) {
    in_8_bits_.at(copy.parameter.unsafeGetTensorImpl())->pack(copy);
  }
  if (coordinator_ && !in_8_bits_.empty()) {
    coordinator_->drop_secondary_shards();
  }
}

bool Sharding::has_masters() const {
  return std::any_of(
      buckets_.begin(), buckets_.end(), [](const auto& bucket) { return bucket->has_masters(); });
}

bool Sharding::has_masters_of(const at::Tensor& parameter) const {
  return mastered_.contains(parameter.unsafeGetTensorImpl());
}

const ShardSlice* Sharding::slice_with(const at::Tensor& values) const {
  const auto found = slice_with_.find(values.unsafeGetTensorImpl());
  return found == slice_with_.end() ? nullptr : &found->second;
}

at::Tensor Sharding::norm_over_ranks(const at::Tensor& own, double norm_type) {
  // A rank without gradients cannot know by them where the others have theirs, and as what.
  const bool wide = std::any_of(parameters_.begin(), parameters_.end(), [](const auto& item) {
    return item.tensor.scalar_type() == at::kDouble;
  });
  const at::Device device = parameters_.empty() ? own.device() : parameters_[0].tensor.device();
  const at::Tensor agreed = own.to(device, wide ? at::kDouble : at::kFloat);
  if (std::isinf(norm_type)) {
    return group_.all_reduce(agreed.clone(), ReduceOp::kMax).wait();
  }
  return at::pow(group_.all_reduce(at::pow(agreed, norm_type)).wait(), 1 / norm_type);
}

}  // namespace lockstep::zero
