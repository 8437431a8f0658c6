// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat_group.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "lockstep/flat/layout.h"

namespace lockstep::optim {
namespace {

// DataParallelOptions' defaults.
constexpr int64_t kCapBytes = int64_t{25} << 20;
constexpr int64_t kFirstCapBytes = int64_t{1} << 20;

bool may_move(const at::Tensor& parameter) {
  return parameter.requires_grad() && parameter.numel() > 0 && parameter.layout() == at::kStrided &&
         parameter.is_non_overlapping_and_dense() && parameter.has_storage() &&
         parameter.storage().use_count() == 1;
}

bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

/// `to` begins `distance` elements behind `from`, in the same memory.
bool lies_behind(const at::Tensor& from, const at::Tensor& to, int64_t distance) {
  return shares_memory(from, to) && to.scalar_type() == from.scalar_type() &&
         to.storage_offset() - from.storage_offset() == distance;
}

int64_t length_between(const FlatParameter& a, const FlatParameter& b) {
  return b.offset - a.offset + b.parameter.numel();
}

}  // namespace

bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || !a.is_non_overlapping_and_dense()) {
    return false;
  }
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) != 1 && a.stride(dim) != b.stride(dim)) {
      return false;
    }
  }
  return true;
}

void FlatGroup::add(const std::vector<at::Tensor>& parameters) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> moving;
  std::vector<at::Tensor> staying;
  for (const at::Tensor& parameter : parameters) {
    (may_move(parameter) ? moving : staying).push_back(parameter);
  }
  const auto new_item = [this](const at::Tensor& parameter) {
    return FlatParameter{
        .parameter = parameter,
        .sizes = parameter.sizes().vec(),
        .state = std::vector<at::Tensor>(field_count_)};
  };
  for (const flat::BucketPlan& plan : flat::plan_buckets(moving, kCapBytes, kFirstCapBytes)) {
    if (plan.slots.size() == 1) {
      staying.push_back(moving[plan.slots[0].parameter]);
      continue;
    }
    const at::Tensor buffer =
        at::zeros({plan.numel}, moving[plan.slots[0].parameter].detach().options());
    for (const flat::Slot& slot : plan.slots) {
      at::Tensor& parameter = moving[slot.parameter];
      const at::Tensor place = flat::view_like(buffer, slot, parameter);
      place.copy_(parameter);
      parameter.set_data(place);
      FlatParameter item = new_item(parameter);
      item.buffer = buffers_.size();
      item.offset = slot.offset;
      items_.push_back(std::move(item));
    }
    buffers_.push_back({.parameters = buffer, .state = std::vector<at::Tensor>(field_count_)});
  }
  for (const at::Tensor& parameter : staying) {
    items_.push_back(new_item(parameter));
  }
}

at::Tensor& FlatGroup::place_state(FlatParameter& item, size_t field, StateShape shape) {
  const at::Tensor& parameter = item.parameter;
  const at::TensorOptions options = parameter.options();
  at::Tensor& state = item.state[field];
  if (shape == StateShape::kRow || shape == StateShape::kColumn) {
    std::vector<int64_t> sizes = parameter.sizes().vec();
    sizes[sizes.size() - (shape == StateShape::kRow ? 1 : 2)] = 1;
    state = at::empty(sizes, options);
  } else if (at_home(item)) {
    at::Tensor& buffer = buffers_[item.buffer].state[field];
    if (!buffer.defined()) {
      buffer = at::zeros_like(buffers_[item.buffer].parameters);
    }
    state = buffer.as_strided(parameter.sizes(), parameter.strides(), item.offset);
  } else if (parameter.is_non_overlapping_and_dense()) {
    // New memory costs more than what is then written to it: a page fault every 4 KiB.
    const bool fits = state.defined() && state.sizes() == parameter.sizes() &&
                      same_strides(state, parameter) && state.device() == parameter.device() &&
                      state.scalar_type() == parameter.scalar_type();
    if (!fits) {
      state = at::empty_strided(parameter.sizes(), parameter.strides(), options);
    }
  } else {
    state = at::empty(parameter.sizes(), options);
  }
  return state;
}

void FlatGroup::follow_parameter(FlatParameter& item) {
  const at::Tensor& parameter = item.parameter;
  const bool dense = parameter.is_non_overlapping_and_dense();
  for (at::Tensor& state : item.state) {
    if (!state.defined()) {
      continue;
    }
    const bool shaped = state.sizes() == parameter.sizes();
    const bool strided =
        !shaped || (dense ? same_strides(state, parameter) : state.is_contiguous());
    if (state.device() == parameter.device() && state.scalar_type() == parameter.scalar_type() &&
        strided) {
      continue;
    }
    if (shaped && dense) {
      state = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options())
                  .copy_(state);
    } else {
      state = state.to(parameter.options()).contiguous();
    }
  }
}

bool FlatGroup::at_home(const FlatParameter& item) const {
  if (item.buffer == FlatParameter::kLoose) {
    return false;
  }
  const at::Tensor& buffer = buffers_[item.buffer].parameters;
  return item.parameter.has_storage() && lies_behind(buffer, item.parameter, item.offset) &&
         item.parameter.is_non_overlapping_and_dense();
}

bool FlatGroup::lie_alike(const FlatParameter& a, const FlatParameter& b) const {
  const int64_t distance = b.offset - a.offset;
  if (a.buffer != b.buffer || !at_home(a) || !at_home(b)) {
    return false;
  }
  for (const FlatParameter* item : {&a, &b}) {
    const at::Tensor& gradient = item->parameter.grad();
    if (!same_strides(gradient, item->parameter) ||
        gradient.scalar_type() != item->parameter.scalar_type()) {
      return false;
    }
  }
  if (!lies_behind(a.parameter.grad(), b.parameter.grad(), distance)) {
    return false;
  }
  const Buffer& buffer = buffers_[a.buffer];
  for (size_t field = 0; field < field_count_; ++field) {
    if (a.state[field].defined() != b.state[field].defined()) {
      return false;
    }
    if (a.state[field].defined() && !(buffer.state[field].defined() &&
                                      lies_behind(buffer.state[field], a.state[field], a.offset) &&
                                      lies_behind(buffer.state[field], b.state[field], b.offset))) {
      return false;
    }
  }
  return true;
}

at::Tensor FlatGroup::parameters_between(const FlatParameter& a, const FlatParameter& b) const {
  return buffers_[a.buffer].parameters.narrow(0, a.offset, length_between(a, b));
}

at::Tensor FlatGroup::gradients_between(const FlatParameter& a, const FlatParameter& b) const {
  const at::Tensor& gradient = a.parameter.grad();
  return gradient.as_strided({length_between(a, b)}, {1}, gradient.storage_offset());
}

at::Tensor FlatGroup::state_between(
    const FlatParameter& a, const FlatParameter& b, size_t field) const {
  return a.state[field].defined()
             ? buffers_[a.buffer].state[field].narrow(0, a.offset, length_between(a, b))
             : at::Tensor();
}

}  // namespace lockstep::optim
