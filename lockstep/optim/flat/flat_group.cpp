// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/flat_group.h"

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
#include "lockstep/flat/layout.h"
#include "lockstep/optim/flat/capturable.h"

namespace lockstep::optim {
namespace {

// DataParallelOptions' defaults.
constexpr int64_t kCapBytes = int64_t{25} << 20;
constexpr int64_t kFirstCapBytes = int64_t{1} << 20;

constexpr const char* kHeldElsewhere =
    "something else holds its memory too (a view, a second parameter over it), or it has gaps";

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
          "a parameter of shape [{}] cannot lie in memory that ranks share: {}",
          fmt::join(parameter.sizes(), ", "),
          why));
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

FlatParameter FlatGroup::new_item(const at::Tensor& parameter) const {
  return {
      .parameter = parameter,
      .sizes = parameter.sizes().vec(),
      .state = std::vector<at::Tensor>(field_count_)};
}

at::TensorOptions FlatGroup::state_options(const at::Tensor& parameter) const {
  const bool is_short = parameter.element_size() < 4;
  return fp32_state_ && is_short ? parameter.options().dtype(at::kFloat) : parameter.options();
}

int64_t FlatGroup::state_bytes(size_t buffer) const {
  const at::Tensor& parameters = buffers_[buffer].parameters;
  return parameters.numel() * static_cast<int64_t>(state_options(parameters).dtype().itemsize());
}

at::Tensor FlatGroup::memory(int64_t numel, const at::TensorOptions& options) {
  if (!group_) {
    return at::zeros({numel}, options);
  }
  at::Tensor zeros = group_->shared_zeros({numel}, options);
  if (!zeros.defined()) {
    throw ConfigError(
        "optim",
        fmt::format(
            "parameters can be shared by ranks that have memory in common; these talk over {}: run "
            "all of them on one host with LOCKSTEP_COMM=auto, or leave shared_parameters off",
            group_->transport_name()));
  }
  return zeros;
}

at::Tensor FlatGroup::shared(const at::Tensor& from) {
  at::Tensor to = memory(from.numel(), from.options().requires_grad(false))
                      .as_strided(from.sizes(), from.strides());
  if (group_->rank() == 0) {
    to.copy_(from);
  }
  return to;
}

void FlatGroup::lay_out(const flat::BucketPlan& plan, std::vector<at::Tensor>& moving) {
  const at::Tensor buffer =
      memory(plan.numel, moving[plan.entries[0].parameter].detach().options());
  for (const flat::BucketEntry& entry : plan.entries) {
    at::Tensor& parameter = moving[entry.parameter];
    const at::Tensor place = flat::view_like(buffer, entry, parameter);
    if (!group_ || group_->rank() == 0) {
      place.copy_(parameter);
    }
    parameter.set_data(place);
    FlatParameter item = new_item(parameter);
    item.buffer = buffers_.size();
    item.offset = entry.offset;
    items_.push_back(std::move(item));
  }
  buffers_.push_back({.parameters = buffer, .state = std::vector<at::Tensor>(field_count_)});
}

void FlatGroup::add(const std::vector<at::Tensor>& parameters) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> moving;
  std::vector<at::Tensor> staying;
  for (const at::Tensor& parameter : parameters) {
    const bool moves = may_move(parameter);
    if (group_ && !moves && is_updated(parameter)) {
      refuse_to_share(parameter, kHeldElsewhere);
    }
    (moves ? moving : staying).push_back(parameter);
  }
  for (const flat::BucketPlan& plan : flat::plan_buckets(moving, kCapBytes, kFirstCapBytes)) {
    if (plan.entries.size() == 1 && !group_) {
      staying.push_back(moving[plan.entries[0].parameter]);
    } else {
      lay_out(plan, moving);
    }
  }
  for (const at::Tensor& parameter : staying) {
    items_.push_back(new_item(parameter));
  }
  if (group_) {
    group_->barrier();  // Rank 0's values are there.
  }
}

void FlatGroup::add_in_place(
    const at::Tensor& buffer,
    const std::vector<at::Tensor>& pieces,
    std::shared_ptr<offload::FileTensor> file) {
  for (const at::Tensor& piece : pieces) {
    FlatParameter item = new_item(piece);
    item.buffer = buffers_.size();
    item.offset = piece.storage_offset() - buffer.storage_offset();
    items_.push_back(std::move(item));
  }
  buffers_.push_back(
      {.parameters = buffer,
       .state = std::vector<at::Tensor>(field_count_),
       .parameter_file = std::move(file)});
}

void FlatGroup::offload_state(size_t buffer, std::shared_ptr<offload::ScratchFile> file) {
  buffers_[buffer].state_on_host = true;
  buffers_[buffer].scratch = std::move(file);
}

std::vector<offload::FileTensor*> FlatGroup::files_of(size_t buffer) const {
  std::vector<offload::FileTensor*> files;
  if (buffers_[buffer].parameter_file) {
    files.push_back(buffers_[buffer].parameter_file.get());
  }
  for (const auto& file : buffers_[buffer].state_files) {
    files.push_back(file.get());
  }
  return files;
}

at::Tensor FlatGroup::state_memory(Buffer& buffer, const at::TensorOptions& options) {
  const int64_t numel = buffer.parameters.numel();
  if (buffer.scratch) {
    buffer.state_files.push_back(
        std::make_shared<offload::FileTensor>(buffer.scratch, numel, options));
    return buffer.state_files.back()->tensor();
  }
  return buffer.state_on_host ? at::zeros({numel}, options.device(at::kCPU))
                              : memory(numel, options);
}

void FlatGroup::share(const Group& group) {
  const c10::AutoGradMode no_grad(false);
  for (const FlatParameter& item : items_) {
    const bool loose = item.buffer == FlatParameter::kLoose;
    if (is_updated(item.parameter) && !(loose ? may_move(item.parameter) : at_home(item))) {
      refuse_to_share(item.parameter, kHeldElsewhere);
    }
  }
  group_ = group;
  for (FlatParameter& item : items_) {
    if (item.buffer == FlatParameter::kLoose && is_updated(item.parameter)) {
      item.buffer = buffers_.size();
      buffers_.push_back(
          {.parameters = memory_of(item.parameter.detach()),
           .state = std::vector<at::Tensor>(field_count_)});
      for (size_t field = 0; field < field_count_; ++field) {
        if (item.state[field].defined() && item.state[field].sizes() == item.parameter.sizes()) {
          buffers_.back().state[field] = memory_of(item.state[field]);
        }
      }
    }
  }
  for (size_t index = 0; index < buffers_.size(); ++index) {
    share_buffer(index);
  }
  group_->barrier();  // Rank 0's values are there.
}

void FlatGroup::share_buffer(size_t index) {
  const Buffer before = buffers_[index];
  Buffer& buffer = buffers_[index];
  buffer.parameters = shared(before.parameters);
  for (at::Tensor& state : buffer.state) {
    state = state.defined() ? shared(state) : state;
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
      if (state.defined()) {
        const at::Tensor& whole = before.state[field];
        const bool flat = whole.defined() && lies_behind(whole, state, item.offset);
        state = flat ? place_in(buffer.state[field]) : shared(state);
      }
    }
    parameter.set_data(place_in(buffer.parameters));
  }
}

void FlatGroup::check_place(const FlatParameter& item) const {
  if (group_ && item.parameter.numel() > 0 && !at_home(item)) {
    refuse_to_share(
        item.parameter,
        "it was frozen when it was shared, or has moved since (set_data, Module::to); unfreeze and "
        "move before prepare()");
  }
}

at::Tensor& FlatGroup::place_state(FlatParameter& item, size_t field, StateShape shape) {
  const at::Tensor& parameter = item.parameter;
  const at::TensorOptions options = state_options(parameter);
  at::Tensor& state = item.state[field];
  if (shape == StateShape::kRow || shape == StateShape::kColumn) {
    std::vector<int64_t> sizes = item.whole_sizes();
    sizes[sizes.size() - (shape == StateShape::kRow ? 1 : 2)] = 1;
    if (!group_) {
      state = at::empty(sizes, options);
    } else if (!state.defined() || state.sizes() != sizes) {
      state = memory(c10::multiply_integers(sizes), options).view(sizes);
    }
  } else if (at_home(item)) {
    at::Tensor& buffer = buffers_[item.buffer].state[field];
    if (!buffer.defined()) {
      buffer = state_memory(buffers_[item.buffer], options);
    }
    state = buffer.as_strided(parameter.sizes(), parameter.strides(), item.offset);
  } else {
    // New memory costs more than what is then written to it, a page fault every 4 KiB, and graphs
    // know the old.
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

void FlatGroup::follow_parameter(FlatParameter& item) {
  const at::Tensor& parameter = item.parameter;
  const bool dense = parameter.is_non_overlapping_and_dense();
  if (item.buffer != FlatParameter::kLoose && buffers_[item.buffer].state_on_host) {
    return;  // It is to lie elsewhere.
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
          "a parameter has moved since its last step, and a graph is being captured, which would "
          "bring its state of now in every replay; take a step before");
    }
    if (shaped && dense) {
      state = at::empty_strided(parameter.sizes(), parameter.strides(), options).copy_(state);
    } else {
      state = state.to(options).contiguous();
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

bool FlatGroup::all_at_home() const {
  return std::all_of(items_.begin(), items_.end(), [this](const FlatParameter& item) {
    return item.buffer == FlatParameter::kLoose || at_home(item);
  });
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
