// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/full_values.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/offload/scratch_file.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/zero/sharding.h"

namespace lockstep::internal {
namespace {

at::Tensor itself(const at::Tensor& owned) {
  return owned.detach();
}

at::Tensor gradient_of(const at::Tensor& owned) {
  return owned.grad();
}

}  // namespace

FullValues::Part FullValues::part_of(const at::Tensor& parameter, const Field& field) const {
  zero::Sharding* sharding = optimizer_.sharding();
  const std::vector<at::Tensor> trained =
      sharding == nullptr ? optimizer_.parameters() : sharding->parameters();
  const bool is_trained = std::any_of(
      trained.begin(), trained.end(), [&](const auto& each) { return each.is_same(parameter); });
  if (!is_trained) {
    throw ConfigError(
        "full_values",
        "only trained parameters have full values; got a tensor that the optimizer does not train; "
        "read a frozen parameter within with_gathered_parameters");
  }
  if (sharding == nullptr) {
    return {field(parameter), 0};
  }
  const std::vector<at::Tensor> shard_slices = sharding->slices().of({parameter});
  if (shard_slices.empty()) {
    return {};
  }
  return {field(shard_slices[0]), sharding->slices().find(shard_slices[0])->begin};
}

at::Tensor FullValues::full(const at::Tensor& parameter, const Part& part) const {
  const at::TensorOptions options = at::device(parameter.device()).dtype(at::kFloat);
  const bool sharded = optimizer_.sharding() != nullptr;
  at::Tensor all = at::zeros(
      part.values.defined() && !sharded ? part.values.sizes() : parameter.sizes(), options);
  std::string failure;
  try {
    if (part.values.defined()) {
      all.view({-1})
          .narrow(0, part.begin, part.values.numel())
          .copy_(offload::in_memory(part.values).flatten());
    }
  } catch (const std::exception& error) {
    failure = error.what();  // A disk may fail. The other ranks wait for this one.
  }
  if (any_rank(group_, !failure.empty())) {
    throw ConfigError(
        "full_values",
        failure.empty() ? "another rank could not read its part of this parameter" : failure);
  }
  if (sharded) {
    Group group = group_;
    group.all_reduce(all, ReduceOp::kSum).wait();  // All others have zeros there: exact.
  }
  return all;
}

at::Tensor FullValues::replicated(const at::Tensor& parameter, const Part& part) const {
  std::vector<int64_t> sizes(static_cast<size_t>(parameter.dim()));
  if (part.values.defined()) {
    sizes = part.values.sizes().vec();
  }
  Group group = group_;
  const at::Tensor agreed = group.all_reduce(at::tensor(sizes, at::kLong), ReduceOp::kMax).wait();
  std::copy_n(agreed.const_data_ptr<int64_t>(), sizes.size(), sizes.begin());
  at::Tensor all = at::zeros(sizes, at::device(parameter.device()).dtype(at::kFloat));
  if (part.values.defined() && part.begin == 0) {
    all.copy_(part.values);
  }
  return group.all_reduce(all, ReduceOp::kSum).wait();
}

at::Tensor FullValues::copy_for(const at::Tensor& parameter, const at::Tensor& value) {
  if (value.sizes() != parameter.sizes()) {
    throw ConfigError(
        "full_values",
        fmt::format(
            "a full value must have the shape of its parameter; got [{}], expected [{}]",
            fmt::join(value.sizes(), ", "),
            fmt::join(parameter.sizes(), ", ")));
  }
  // `value` may be a sharded parameter, which all ranks must unshard together.
  return value.detach().clone();
}

void FullValues::write(const Part& part, const at::Tensor& own) const {
  Group group = group_;
  group.barrier();  // Without ZeRO other ranks may still read memory that they share with this one.
  if (part.values.defined() && optimizer_.sharding() == nullptr) {
    part.values.copy_(own);
  } else if (part.values.defined()) {
    part.values.copy_(own.reshape({-1}).narrow(0, part.begin, part.values.numel()));
  }
  group.barrier();
}

at::Tensor FullValues::parameter(const at::Tensor& parameter) const {
  const c10::AutoGradMode no_grad(false);
  const Part part = part_of(parameter, itself);
  if (zero::Sharding* sharding = optimizer_.sharding()) {
    sharding->write_back();
  }
  return full(parameter, part);
}

void FullValues::set_parameter(const at::Tensor& parameter, const at::Tensor& value) const {
  const c10::AutoGradMode no_grad(false);
  zero::Sharding* sharding = optimizer_.sharding();
  const Part part = part_of(parameter, itself);
  // Read first: reading `value` may unshard the bucket of `parameter`, and no unsharded copy of the
  // old value may remain.
  const at::Tensor own = copy_for(parameter, value);
  if (sharding != nullptr) {
    sharding->finish_parameter_use();
  }
  write(part, own);
  if (sharding != nullptr) {
    sharding->gather_parameters();
  }
}

void FullValues::check_averaged() const {
  if (!averaged_) {
    throw ConfigError(
        "full_values",
        "gradients are not averaged yet; stages 0 and 1 average them in the last micro-step of an "
        "update; call this after that micro-step's backward");
  }
}

at::Tensor FullValues::gradient(const at::Tensor& parameter) const {
  const c10::AutoGradMode no_grad(false);
  check_averaged();
  const Part part = part_of(parameter, gradient_of);
  return any_rank(group_, part.values.defined()) ? full(parameter, part).div_(loss_scale_)
                                                 : at::Tensor();
}

void FullValues::set_gradient(const at::Tensor& parameter, const at::Tensor& value) const {
  const c10::AutoGradMode no_grad(false);
  check_averaged();
  const Part part = part_of(parameter, gradient_of);
  if (!any_rank(group_, part.values.defined())) {
    throw ConfigError(
        "full_values", "this parameter has no gradient to set; call it between backward and step");
  }
  // In 16 bits the scaled gradients might not be finite.
  const at::ScalarType wide = at::promote_types(value.scalar_type(), at::kFloat);
  write(part, copy_for(parameter, at::mul(value.detach().to(wide), loss_scale_)));
}

FullValues::Field FullValues::state_field(const std::string& name) const {
  return [this, name](const at::Tensor& owned) {
    const ParameterName name_of = [&](const at::Tensor& each) {
      return each.is_same(owned) ? "this" : "other";
    };
    for (const NamedTensor& item : optimizer_tensors(optimizer_.inner(), name_of)) {
      if (item.name == "this." + name) {
        return item.tensor;
      }
    }
    return at::Tensor();
  };
}

at::Tensor FullValues::state(const at::Tensor& parameter, const std::string& field) const {
  const c10::AutoGradMode no_grad(false);
  const Part part = part_of(parameter, state_field(field));
  if (!any_rank(group_, part.values.defined())) {
    throw ConfigError(
        "full_values",
        fmt::format(
            "the optimizer has no '{}' of this parameter; state exists after the first step, under "
            "the names of Python's state_dict (exp_avg, exp_avg_sq, momentum_buffer, step)",
            field));
  }
  const bool is_count = part.values.defined() && part.values.dim() == 0 && parameter.dim() > 0;
  if (any_rank(group_, is_count)) {
    Group group = group_;
    const double own = part.values.defined() ? part.values.item<double>() : 0;
    return group.all_reduce(at::full({}, own, at::kDouble), ReduceOp::kMax).wait();
  }
  // Slices have one dimension.
  const bool is_factor =
      optimizer_.sharding() != nullptr && part.values.defined() && part.values.dim() > 1;
  return any_rank(group_, is_factor) ? replicated(parameter, part) : full(parameter, part);
}

void FullValues::set_state(
    const at::Tensor& parameter, const std::string& field, const at::Tensor& value) const {
  const c10::AutoGradMode no_grad(false);
  const Part part = part_of(parameter, state_field(field));
  const bool sharded = optimizer_.sharding() != nullptr;
  // A count of a 0-d parameter has the parameter's shape.
  const bool fits = part.values.defined() && !is_scalar_state(field) &&
                    (sharded ? part.values.dim() == 1 : part.values.sizes() == parameter.sizes());
  if (!any_rank(group_, fits)) {
    throw ConfigError(
        "full_values",
        fmt::format(
            "the optimizer has no '{}' of this parameter that can be set; state exists after the "
            "first step, and only tensors with the parameter's shape can be set, not counts",
            field));
  }
  write(part, copy_for(parameter, value));
}

}  // namespace lockstep::internal
