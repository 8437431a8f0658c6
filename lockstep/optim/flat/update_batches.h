// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/flat/flat_group.h"
#include "lockstep/optim/flat/parameter_layout.h"
#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// Batches for an update rule. A batch has runs of neighbouring parameters, each as one tensor.
class UpdateBatches {
 public:
  /// `group` must outlive this. `device_lr`: see Batch.
  UpdateBatches(const FlatGroup& group, size_t field_count, at::Tensor device_lr = {})
      : group_(&group), field_count_(field_count), device_lr_(std::move(device_lr)) {}

  /// Adds the run from `first` to `last`, which may be the same. `new_state`: its state is new.
  void add(const FlatParameter& first, const FlatParameter& last, bool new_state);

  const std::vector<Batch>& batches() const { return batches_; }

  /// Copies results from dense copies back to their parameters.
  void copy_back() const;

 private:
  Batch& batch_for(const at::Tensor& parameter, bool new_state);
  void add_one(Batch& batch, const FlatParameter& item);

  const FlatGroup* group_;
  size_t field_count_;
  at::Tensor device_lr_;
  std::vector<Batch> batches_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

/// Returns batches of the parameters of `group`, items `begin` to `end`, that have gradients.
/// Counts an update of each, moves its state to its device, and creates missing state.
/// `device_lr`: see Batch.
UpdateBatches gather_batches(
    ParameterLayout& layout, size_t group, size_t begin, size_t end, at::Tensor device_lr = {});

}  // namespace lockstep::optim
