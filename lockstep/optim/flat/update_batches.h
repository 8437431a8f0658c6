// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/flat/flat_group.h"
#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// Groups runs of neighbouring parameters into batches for an update rule.
class UpdateBatches {
 public:
  /// `group` must outlive this. `device_lr`: see Batch.
  UpdateBatches(const FlatGroup& group, size_t field_count, at::Tensor device_lr = {})
      : group_(&group), field_count_(field_count), device_lr_(std::move(device_lr)) {}

  /// Adds the run from `first` to `last`, which may be the same; `fresh`: its state is new.
  void add(const FlatParameter& first, const FlatParameter& last, bool fresh);

  const std::vector<Batch>& batches() const { return batches_; }

  /// Copies results from dense copies back to their parameters.
  void copy_back() const;

 private:
  Batch& batch_for(const at::Tensor& parameter, bool fresh);
  void add_one(Batch& batch, const FlatParameter& item);

  const FlatGroup* group_;
  size_t field_count_;
  at::Tensor device_lr_;
  std::vector<Batch> batches_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace lockstep::optim
