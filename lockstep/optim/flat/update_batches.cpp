// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/update_batches.h"

#include <ATen/ops/empty_strided.h>

namespace lockstep::optim {
namespace {

/// `gradient` in the dtype and order of `parameter`: the fused kernels walk memory, not indices.
at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (same_strides(gradient, parameter) && gradient.scalar_type() == parameter.scalar_type()) {
    return gradient;
  }
  return at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options())
      .copy_(gradient);
}

}  // namespace

void UpdateBatches::add(const FlatParameter& first, const FlatParameter& last, bool fresh) {
  Batch& batch = batch_for(first.parameter, fresh);
  batch.steps.push_back(first.step);
  batch.factors.push_back(first.factors);
  if (first.device_step.defined()) {
    batch.device_steps.push_back(first.device_step);
  }
  for (const FlatParameter* item = &first; item <= &last; ++item) {
    // Autograd must notice that what it saved has changed, also where another rank does it.
    item->parameter.unsafeGetTensorImpl()->bump_version();
  }
  if (&first == &last) {
    add_one(batch, first);
    return;
  }
  batch.parameters.push_back(group_->parameters_between(first, last));
  batch.gradients.push_back(group_->gradients_between(first, last));
  for (size_t field = 0; field < field_count_; ++field) {
    batch.state[field].push_back(group_->state_between(first, last, field));
  }
}

void UpdateBatches::copy_back() const {
  for (const auto& [parameter, updated] : copies_) {
    parameter.copy_(updated);
  }
}

Batch& UpdateBatches::batch_for(const at::Tensor& parameter, bool fresh) {
  for (Batch& batch : batches_) {
    if (batch.first == fresh && batch.parameters[0].scalar_type() == parameter.scalar_type() &&
        batch.parameters[0].device() == parameter.device()) {
      return batch;
    }
  }
  Batch& batch = batches_.emplace_back();
  batch.first = fresh;
  batch.device_lr = device_lr_;
  batch.state.resize(field_count_);
  return batch;
}

void UpdateBatches::add_one(Batch& batch, const FlatParameter& item) {
  at::Tensor parameter = item.parameter;
  if (!parameter.is_non_overlapping_and_dense()) {
    parameter = parameter.contiguous();
    copies_.emplace_back(item.parameter, parameter);
  }
  batch.parameters.push_back(parameter);
  batch.gradients.push_back(laid_out_like(item.parameter.grad(), parameter));
  for (size_t field = 0; field < field_count_; ++field) {
    batch.state[field].push_back(item.state[field]);
  }
}

}  // namespace lockstep::optim
