// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/shard_slices.h"

#include <set>

#include <c10/core/GradMode.h>

namespace lockstep::zero {

void ShardSlices::add(ShardedBucket& bucket) {
  for (const at::Tensor& parameter : bucket.parameters()) {
    const at::TensorImpl* key = parameter.unsafeGetTensorImpl();
    by_parameter_.try_emplace(key);  // Other ranks may own all of it.
    if (bucket.has_masters() && !bucket.is_sharded()) {
      with_masters_.insert(key);
    }
    if (bucket.is_quantized()) {
      quantized_[key] = &bucket;
    }
  }
  for (const ShardSlice& shard_slice : bucket.shard_slices()) {
    by_values_[shard_slice.values.unsafeGetTensorImpl()] = shard_slice;
    by_parameter_[shard_slice.parameter.unsafeGetTensorImpl()].push_back(shard_slice.values);
  }
}

std::vector<at::Tensor> ShardSlices::of(const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> all;
  std::set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    const auto found = by_parameter_.find(parameter.unsafeGetTensorImpl());
    if (found == by_parameter_.end()) {
      all.push_back(parameter);
    } else {
      all.insert(all.end(), found->second.begin(), found->second.end());
    }
  }
  return all;
}

const ShardSlice* ShardSlices::find(const at::Tensor& values) const {
  const auto found = by_values_.find(values.unsafeGetTensorImpl());
  return found == by_values_.end() ? nullptr : &found->second;
}

std::vector<ShardSlice> ShardSlices::saved(const at::Tensor& parameter) const {
  std::vector<ShardSlice> shard_slices;
  const auto quantized = quantized_.find(parameter.unsafeGetTensorImpl());
  if (quantized != quantized_.end()) {
    shard_slices = quantized->second->dequantized();
    std::erase_if(shard_slices, [&](const ShardSlice& shard_slice) {
      return !shard_slice.parameter.is_same(parameter);
    });
    return shard_slices;
  }
  for (const at::Tensor& values : of({parameter})) {
    shard_slices.push_back(*find(values));
  }
  return shard_slices;
}

void ShardSlices::store_quantized(const std::vector<ShardSlice>& copies) const {
  const c10::AutoGradMode no_grad(false);
  for (const ShardSlice& copy : copies) {
    quantized_.at(copy.parameter.unsafeGetTensorImpl())->store_quantized(copy);
  }
}

}  // namespace lockstep::zero
