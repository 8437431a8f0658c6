// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/update_in_fp32.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep::optim {
namespace {

constexpr int64_t kFp32Chunk = int64_t{1} << 20;  // Elements.

/// Returns elements `begin` to `begin + length`, in memory order, of one tensor of a call.
RuleCall part_of(const RuleCall& call, size_t index, int64_t begin, int64_t length) {
  const auto cut = [&](const at::Tensor& tensor) {
    return tensor.defined() ? memory_of(tensor).narrow(0, begin, length) : at::Tensor();
  };
  RuleCall part{
      .parameters = {cut(call.parameters[index])},
      .gradients = {cut(call.gradients[index])},
      .state = {},
      .steps = {call.steps[index]},
      .factors = {},
      .first = call.first,
      .device_lr = call.device_lr};
  for (const std::vector<at::Tensor>& field : call.state) {
    part.state.push_back({cut(field[index])});
  }
  if (!call.factors.empty()) {
    part.factors = {call.factors[index]};
  }
  if (!call.device_steps.empty()) {
    part.device_steps = {call.device_steps[index]};
  }
  return part;
}

}  // namespace

Fp32Copies::Fp32Copies(const RuleCall& call) : wide_(call) {
  for (at::Tensor& parameter : wide_.parameters) {
    parameter = in_fp32(parameter);
  }
  for (std::vector<at::Tensor>& field : wide_.state) {
    for (at::Tensor& tensor : field) {
      tensor = in_fp32(tensor);
    }
  }
  for (at::Tensor& gradient : wide_.gradients) {
    gradient = gradient.to(wide_.parameters[0].scalar_type());  // Only read.
  }
}

at::Tensor Fp32Copies::in_fp32(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.element_size() >= 4) {
    return tensor;
  }
  rounded_.emplace_back(tensor, tensor.to(at::kFloat));
  return rounded_.back().second;
}

void Fp32Copies::round_back() const {
  for (const auto& [to, from] : rounded_) {
    to.copy_(from);
  }
}

void update_in_fp32(const RuleCall& call, const std::function<void(const RuleCall& wide)>& update) {
  if (call.parameters.empty() || call.parameters[0].element_size() >= 4) {
    update(call);
    return;
  }
  for (size_t i = 0; i < call.parameters.size(); ++i) {
    const int64_t numel = call.parameters[i].numel();
    for (int64_t begin = 0; begin < numel; begin += kFp32Chunk) {
      const Fp32Copies copies(part_of(call, i, begin, std::min(kFp32Chunk, numel - begin)));
      update(copies.wide());
      copies.round_back();
    }
  }
}

}  // namespace lockstep::optim
