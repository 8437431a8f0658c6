// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/zero/bucket/sharded_bucket.h"

namespace lockstep::zero {

/// Finds this rank's shard slices by parameter and by values. Lookups are thread-safe.
class ShardSlices {
 public:
  /// `bucket` must outlive this.
  void add(ShardedBucket& bucket);

  /// Returns all slices by their values, except those stored in 8 bits.
  const std::map<const at::TensorImpl*, ShardSlice>& all() const { return by_values_; }
  /// Returns the slices of `parameters`; an unknown parameter is returned itself.
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& parameters) const;
  /// Returns the slice with these values; null if none has them.
  const ShardSlice* find(const at::Tensor& values) const;
  /// Returns this rank's part of a sharded parameter for saving: its slices, or, if stored in 8
  /// bits, copies.
  std::vector<ShardSlice> saved(const at::Tensor& parameter) const;
  /// Returns whether the parameter is stored in 8 bits, equally on all ranks. Its slices are
  /// copies; `store_quantized` stores them after a write.
  bool is_quantized(const at::Tensor& parameter) const {
    return quantized_.contains(parameter.unsafeGetTensorImpl());
  }
  bool any_quantized() const { return !quantized_.empty(); }
  void store_quantized(const std::vector<ShardSlice>& copies) const;
  /// Returns whether the slices of a replicated parameter are its fp32 masters.
  bool has_masters_of(const at::Tensor& parameter) const {
    return with_masters_.contains(parameter.unsafeGetTensorImpl());
  }

 private:
  std::map<const at::TensorImpl*, ShardSlice> by_values_;
  std::map<const at::TensorImpl*, std::vector<at::Tensor>> by_parameter_;
  std::set<const at::TensorImpl*> with_masters_;               ///< Replicated parameters.
  std::map<const at::TensorImpl*, ShardedBucket*> quantized_;  ///< Parameters stored in 8 bits.
};

}  // namespace lockstep::zero
