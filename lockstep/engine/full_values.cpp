// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/full_values.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/zero/sharding.h"

namespace lockstep {
namespace {

at::Tensor itself(const at::Tensor& owned) {
  return owned.detach();
}

at::Tensor gradient_of(const at::Tensor& owned) {
  return owned.grad();
}

}  // namespace

bool FullValues::anywhere(bool here) const {
  Group group = group_;
  return group.all_reduce(at::full({1}, here ? 1 : 0, at::kInt), ReduceOp::kMax)
             .wait()
             .item<int>() != 0;
}

FullValues::Part FullValues::part_of(const at::Tensor& parameter, const Field& field) const {
  zero::Sharding* sharding = optimizer_.sharding();
  const std::vector<at::Tensor> trained =
      sharding == nullptr ? optimizer_.parameters() : sharding->parameters();
  const bool is_trained = std::any_of(trained.begin(), trained.end(), [&](const auto& each) {
    return each.is_same(parameter);
  });
  if (!is_trained) {
    throw ConfigError(
        "engine",
        "only what the optimizer trains has full values; got a tensor that it does not; read a "
        "frozen parameter within with_gathered_parameters");
  }
  if (sharding == nullptr) {
    return {field(parameter), 0};
  }
  const std::vector<at::Tensor> pieces = sharding->pieces_of({parameter});
  if (pieces.empty()) {
    return {};
  }
  return {field(pieces[0]), sharding->piece_with(pieces[0])->begin};
}

at::Tensor FullValues::whole(const at::Tensor& parameter, const Part& part) const {
  if (optimizer_.sharding() == nullptr) {
    return part.values.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  at::Tensor all =
      at::zeros({parameter.numel()}, at::device(parameter.device()).dtype(at::kFloat));
  if (part.values.defined()) {
    all.narrow(0, part.begin, part.values.numel()).copy_(part.values);
  }
  Group group = group_;
  group.all_reduce(all, ReduceOp::kSum).wait();  // All others have zeros there: exact.
  return all.view(parameter.sizes());
}

void FullValues::write(
    const at::Tensor& parameter, const Part& part, const at::Tensor& value) const {
  if (value.sizes() != parameter.sizes()) {
    throw ConfigError(
        "engine",
        fmt::format(
            "a whole value is shaped as its parameter; got [{}], expected [{}]",
            fmt::join(value.sizes(), ", "),
            fmt::join(parameter.sizes(), ", ")));
  }
  if (!part.values.defined()) {
    return;
  }
  if (optimizer_.sharding() == nullptr) {
    part.values.copy_(value);
  } else {
    part.values.copy_(value.reshape({-1}).narrow(0, part.begin, part.values.numel()));
  }
}

at::Tensor FullValues::parameter(const at::Tensor& parameter) const {
  const c10::AutoGradMode no_grad(false);
  if (zero::Sharding* sharding = optimizer_.sharding()) {
    sharding->settle_parameters();
  }
  return whole(parameter, part_of(parameter, itself));
}

void FullValues::set_parameter(const at::Tensor& parameter, const at::Tensor& value) const {
  const c10::AutoGradMode no_grad(false);
  zero::Sharding* sharding = optimizer_.sharding();
  if (sharding != nullptr) {
    sharding->settle_parameters();
  }
  write(parameter, part_of(parameter, itself), value);
  if (sharding != nullptr) {
    sharding->gather_parameters();
  }
}

at::Tensor FullValues::gradient(const at::Tensor& parameter) const {
  const c10::AutoGradMode no_grad(false);
  const Part part = part_of(parameter, gradient_of);
  return anywhere(part.values.defined()) ? whole(parameter, part) : at::Tensor();
}

void FullValues::set_gradient(const at::Tensor& parameter, const at::Tensor& value) const {
  const c10::AutoGradMode no_grad(false);
  const Part part = part_of(parameter, gradient_of);
  if (!anywhere(part.values.defined())) {
    throw ConfigError(
        "engine", "this parameter has no gradient to set; call it between backward and step");
  }
  write(parameter, part, value);
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
  if (!anywhere(part.values.defined())) {
    throw ConfigError(
        "engine",
        fmt::format(
            "the optimizer has no '{}' of this parameter; state is there after the first step, by "
            "the names of Python's state_dict (exp_avg, exp_avg_sq, momentum_buffer, step)",
            field));
  }
  const bool is_count = part.values.defined() && part.values.dim() == 0 && parameter.dim() > 0;
  if (anywhere(is_count)) {
    Group group = group_;
    const double own = part.values.defined() ? part.values.item<double>() : 0;
    return group.all_reduce(at::full({}, own, at::kDouble), ReduceOp::kMax).wait();
  }
  return whole(parameter, part);
}

void FullValues::set_state(
    const at::Tensor& parameter, const std::string& field, const at::Tensor& value) const {
  const c10::AutoGradMode no_grad(false);
  const Part part = part_of(parameter, state_field(field));
  const bool is_field = part.values.defined() && part.values.numel() == parameter.numel();
  const bool is_piece = part.values.defined() && part.values.dim() == 1;
  if (!anywhere(is_field || is_piece)) {
    throw ConfigError(
        "engine",
        fmt::format(
            "the optimizer has no '{}' of this parameter that could be set; state is there after "
            "the first step, and what is a count belongs to all of a group",
            field));
  }
  write(parameter, part, value);
}

}  // namespace lockstep
