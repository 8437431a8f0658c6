// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/flat_parameter_group.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/divided_mark.h"
#include "lockstep/optim/flat/capturable.h"

namespace lockstep::optim {
namespace {

// DataParallelOptions' defaults.
constexpr int64_t kCapBytes = int64_t{25} << 20;
constexpr int64_t kFirstCapBytes = int64_t{1} << 20;

constexpr const char* kHeldElsewhere =
    "another tensor uses its memory (a view, a second parameter), or its strides leave gaps; "
    "clone() it, or turn shared_parameters off";

bool may_move(const at::Tensor& parameter) {
  return parameter.requires_grad() && parameter.numel() > 0 && parameter.layout() == at::kStrided &&
         parameter.is_non_overlapping_and_dense() && parameter.has_storage() &&
         parameter.storage().use_count() == 1;
}

bool is_updated(const at::Tensor& parameter) {
  return parameter.requires_grad() && parameter.numel() > 0;
}

[[noreturn]] void refuse_to_share(const at::Tensor& parameter, const char* why) {
  throw ConfigError(
      "optim",
      fmt::format(
          "a parameter of shape [{}] cannot be moved to memory that ranks share: {}",
          fmt::join(parameter.sizes(), ", "),
          why));
}

bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

/// Returns whether `to` begins `distance` elements after `from`, in the same memory.
bool is_at_distance(const at::Tensor& from, const at::Tensor& to, int64_t distance) {
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

FlatParameter FlatParameterGroup::new_item(const at::Tensor& parameter) const {
  return {
      .parameter = parameter,
      .sizes = parameter.sizes().vec(),
      .full_sizes = parameter.sizes().vec(),
      .state = std::vector<at::Tensor>(field_count_)};
}

at::TensorOptions FlatParameterGroup::state_options(const at::Tensor& parameter) const {
  const bool is_short = parameter.element_size() < 4;
  return fp32_state_ && is_short ? parameter.options().dtype(at::kFloat) : parameter.options();
}

int64_t FlatParameterGroup::state_bytes(size_t buffer) const {
  const at::Tensor& parameters = buffers_[buffer].parameters;
  return parameters.numel() * static_cast<int64_t>(state_options(parameters).dtype().itemsize());
}

void FlatParameterGroup::lay_out(const flat::BucketPlan& plan, std::vector<at::Tensor>& moving) {
  const at::Tensor buffer =
      memory_.zeros(plan.numel, moving[plan.entries[0].parameter].detach().options());
  for (const flat::BucketEntry& entry : plan.entries) {
    at::Tensor& parameter = moving[entry.parameter];
    const at::Tensor place = flat::view_like(buffer, entry, parameter);
    if (memory_.is_writer()) {
      place.copy_(parameter);
    }
    comm::set_data_keeping_mark(parameter, place);
    FlatParameter item = new_item(parameter);
    item.buffer = buffers_.size();
    item.offset = entry.offset;
    items_.push_back(std::move(item));
  }
  buffers_.push_back({.parameters = buffer, .state = std::vector<at::Tensor>(field_count_)});
}

void FlatParameterGroup::add(const std::vector<at::Tensor>& parameters) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> moving;
  std::vector<at::Tensor> staying;
  for (const at::Tensor& parameter : parameters) {
    const bool moves = may_move(parameter);
    if (memory_.is_shared() && !moves && is_updated(parameter)) {
      refuse_to_share(parameter, kHeldElsewhere);
    }
    (moves ? moving : staying).push_back(parameter);
  }
  for (const flat::BucketPlan& plan : flat::plan_buckets(moving, kCapBytes, kFirstCapBytes)) {
    if (plan.entries.size() == 1 && !memory_.is_shared()) {
      staying.push_back(moving[plan.entries[0].parameter]);
    } else {
      lay_out(plan, moving);
    }
  }
  for (const at::Tensor& parameter : staying) {
    items_.push_back(new_item(parameter));
  }
  memory_.wait_for_writer();
}

void FlatParameterGroup::add_in_place(
    const at::Tensor& buffer,
    const std::vector<at::Tensor>& slices,
    std::shared_ptr<offload::FileTensor> file) {
  for (const at::Tensor& slice : slices) {
    FlatParameter item = new_item(slice);
    item.buffer = buffers_.size();
    item.offset = slice.storage_offset() - buffer.storage_offset();
    items_.push_back(std::move(item));
  }
  buffers_.push_back(
      {.parameters = buffer,
       .state = std::vector<at::Tensor>(field_count_),
       .parameter_file = std::move(file)});
}

void FlatParameterGroup::offload_state(size_t buffer, std::shared_ptr<offload::ScratchFile> file) {
  buffers_[buffer].state_on_host = true;
  buffers_[buffer].scratch = std::move(file);
}

std::vector<offload::FileTensor*> FlatParameterGroup::files_of(size_t buffer) const {
  std::vector<offload::FileTensor*> files;
  if (buffers_[buffer].parameter_file) {
    files.push_back(buffers_[buffer].parameter_file.get());
  }
  for (const auto& file : buffers_[buffer].state_files) {
    files.push_back(file.get());
  }
  return files;
}

void FlatParameterGroup::release_file_pages(size_t buffer) const {
  if (buffer != FlatParameter::kNoBuffer) {
    for (offload::FileTensor* file : files_of(buffer)) {
      file->release_pages();
    }
  }
}

at::Tensor FlatParameterGroup::state_memory(Buffer& buffer, const at::TensorOptions& options) {
  const int64_t numel = buffer.parameters.numel();
  if (buffer.scratch) {
    buffer.state_files.push_back(
        std::make_shared<offload::FileTensor>(buffer.scratch, numel, options));
    return buffer.state_files.back()->tensor();
  }
  return buffer.state_on_host ? at::zeros({numel}, options.device(at::kCPU))
                              : memory_.zeros(numel, options);
}

void FlatParameterGroup::share(const Group& group) {
  const c10::AutoGradMode no_grad(false);
  for (const FlatParameter& item : items_) {
    const bool loose = item.buffer == FlatParameter::kNoBuffer;
    if (is_updated(item.parameter) && !(loose ? may_move(item.parameter) : is_in_buffer(item))) {
      refuse_to_share(item.parameter, kHeldElsewhere);
    }
  }
  memory_.share(group);
  for (FlatParameter& item : items_) {
    if (item.buffer == FlatParameter::kNoBuffer && is_updated(item.parameter)) {
      use_as_buffer(item);
    }
  }
  for (size_t index = 0; index < buffers_.size(); ++index) {
    share_buffer(index);
  }
  memory_.wait_for_writer();
}

void FlatParameterGroup::use_as_buffer(FlatParameter& item) {
  item.buffer = buffers_.size();
  Buffer& buffer = buffers_.emplace_back(Buffer{
      .parameters = memory_of(item.parameter.detach()),
      .state = std::vector<at::Tensor>(field_count_)});
  for (size_t field = 0; field < field_count_; ++field) {
    if (item.state[field].defined() && item.state[field].sizes() == item.parameter.sizes()) {
      buffer.state[field] = memory_of(item.state[field]);
    }
  }
}

void FlatParameterGroup::share_buffer(size_t index) {
  const Buffer before = buffers_[index];
  Buffer& buffer = buffers_[index];
  buffer.parameters = memory_.shared_copy(before.parameters);
  for (at::Tensor& state : buffer.state) {
    state = state.defined() ? memory_.shared_copy(state) : state;
  }
  for (FlatParameter& item : items_) {
    if (item.buffer != index) {
      continue;
    }
    at::Tensor& parameter = item.parameter;
    const auto place_in = [&](const at::Tensor& memory) {
      return memory.as_strided(parameter.sizes(), parameter.strides(), item.offset);
    };
    for (size_t field = 0; field < field_count_; ++field) {
      at::Tensor& state = item.state[field];
      if (!state.defined()) {
        continue;
      }
      const at::Tensor& old_buffer = before.state[field];
      const bool is_flat = old_buffer.defined() && is_at_distance(old_buffer, state, item.offset);
      state = is_flat ? place_in(buffer.state[field]) : memory_.shared_copy(state);
    }
    comm::set_data_keeping_mark(parameter, place_in(buffer.parameters));
  }
}

void FlatParameterGroup::check_is_shared(const FlatParameter& item) const {
  if (memory_.is_shared() && item.parameter.numel() > 0 && !is_in_buffer(item)) {
    refuse_to_share(
        item.parameter,
        "it was frozen at prepare(), or has moved since (set_data, Module::to); unfreeze and move "
        "parameters before prepare()");
  }
}

at::Tensor& FlatParameterGroup::place_state(FlatParameter& item, size_t field, StateShape shape) {
  const at::Tensor& parameter = item.parameter;
  const at::TensorOptions options = state_options(parameter);
  at::Tensor& state = item.state[field];
  if (shape == StateShape::kRow || shape == StateShape::kColumn) {
    const std::vector<int64_t> sizes = state_sizes(shape, item.sizes, item.full_sizes);
    if (!memory_.is_shared()) {
      state = at::empty(sizes, options);
    } else if (!state.defined() || state.sizes() != sizes) {
      state = memory_.zeros(c10::multiply_integers(sizes), options).view(sizes);
    }
  } else if (is_in_buffer(item)) {
    at::Tensor& buffer = buffers_[item.buffer].state[field];
    if (!buffer.defined()) {
      buffer = state_memory(buffers_[item.buffer], options);
    }
    state = buffer.as_strided(parameter.sizes(), parameter.strides(), item.offset);
  } else {
    // Keeps fitting memory: new memory costs a page fault every 4 KiB, and graphs write to the old
    // memory.
    const bool dense = parameter.is_non_overlapping_and_dense();
    const bool fits = state.defined() && state.sizes() == parameter.sizes() &&
                      (dense ? same_strides(state, parameter) : state.is_contiguous()) &&
                      state.device() == parameter.device() && state.dtype() == options.dtype();
    if (!fits) {
      state = dense ? at::empty_strided(parameter.sizes(), parameter.strides(), options)
                    : at::empty(parameter.sizes(), options);
    }
  }
  return state;
}

void FlatParameterGroup::follow_parameter(FlatParameter& item) {
  const at::Tensor& parameter = item.parameter;
  const bool dense = parameter.is_non_overlapping_and_dense();
  if (item.buffer != FlatParameter::kNoBuffer && buffers_[item.buffer].state_on_host) {
    return;  // Offloaded state stays on the host.
  }
  for (at::Tensor& state : item.state) {
    if (!state.defined()) {
      continue;
    }
    const bool shaped = state.sizes() == parameter.sizes();
    const bool strided =
        !shaped || (dense ? same_strides(state, parameter) : state.is_contiguous());
    const at::TensorOptions options = state_options(parameter);
    if (state.device() == parameter.device() && state.dtype() == options.dtype() && strided) {
      continue;
    }
    if (is_capturing(parameter.device())) {
      throw ConfigError(
          "optim",
          "a parameter has moved since its last step, so every replay of the captured graph would "
          "copy its present state; take a step before the capture");
    }
    if (shaped && dense) {
      state = at::empty_strided(parameter.sizes(), parameter.strides(), options).copy_(state);
    } else {
      state = state.to(options).contiguous();
    }
  }
}

bool FlatParameterGroup::is_in_buffer(const FlatParameter& item) const {
  if (item.buffer == FlatParameter::kNoBuffer) {
    return false;
  }
  const at::Tensor& buffer = buffers_[item.buffer].parameters;
  return item.parameter.has_storage() && is_at_distance(buffer, item.parameter, item.offset) &&
         item.parameter.is_non_overlapping_and_dense();
}

bool FlatParameterGroup::all_in_buffers() const {
  return std::all_of(items_.begin(), items_.end(), [this](const FlatParameter& item) {
    return item.buffer == FlatParameter::kNoBuffer || is_in_buffer(item);
  });
}

bool FlatParameterGroup::can_join(const FlatParameter& a, const FlatParameter& b) const {
  const int64_t distance = b.offset - a.offset;
  if (a.buffer != b.buffer || !is_in_buffer(a) || !is_in_buffer(b)) {
    return false;
  }
  for (const FlatParameter* item : {&a, &b}) {
    const at::Tensor& gradient = item->parameter.grad();
    if (!same_strides(gradient, item->parameter) ||
        gradient.scalar_type() != item->parameter.scalar_type()) {
      return false;
    }
  }
  if (!is_at_distance(a.parameter.grad(), b.parameter.grad(), distance)) {
    return false;
  }
  const Buffer& buffer = buffers_[a.buffer];
  for (size_t field = 0; field < field_count_; ++field) {
    if (a.state[field].defined() != b.state[field].defined()) {
      return false;
    }
    if (a.state[field].defined() &&
        !(buffer.state[field].defined() &&
          is_at_distance(buffer.state[field], a.state[field], a.offset) &&
          is_at_distance(buffer.state[field], b.state[field], b.offset))) {
      return false;
    }
  }
  return true;
}

at::Tensor FlatParameterGroup::parameters_between(
    const FlatParameter& a, const FlatParameter& b) const {
  return buffers_[a.buffer].parameters.narrow(0, a.offset, length_between(a, b));
}

at::Tensor FlatParameterGroup::gradients_between(
    const FlatParameter& a, const FlatParameter& b) const {
  const at::Tensor& gradient = a.parameter.grad();
  return gradient.as_strided({length_between(a, b)}, {1}, gradient.storage_offset());
}

at::Tensor FlatParameterGroup::state_between(
    const FlatParameter& a, const FlatParameter& b, size_t field) const {
  return a.state[field].defined()
             ? buffers_[a.buffer].state[field].narrow(0, a.offset, length_between(a, b))
             : at::Tensor();
}

}  // namespace lockstep::optim
