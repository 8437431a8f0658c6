// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/update_in_fp32.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep::optim {
namespace {

constexpr int64_t kFp32Chunk = int64_t{1} << 20;  // Elements.

/// Returns elements `begin` to `begin + length`, in memory order, of one tensor of a batch.
Batch part_of(const Batch& batch, size_t index, int64_t begin, int64_t length) {
  const auto cut = [&](const at::Tensor& tensor) {
    return tensor.defined() ? memory_of(tensor).narrow(0, begin, length) : at::Tensor();
  };
  Batch part{
      .parameters = {cut(batch.parameters[index])},
      .gradients = {cut(batch.gradients[index])},
      .state = {},
      .steps = {batch.steps[index]},
      .factors = {},
      .first = batch.first,
      .device_lr = batch.device_lr};
  for (const std::vector<at::Tensor>& field : batch.state) {
    part.state.push_back({cut(field[index])});
  }
  if (!batch.factors.empty()) {
    part.factors = {batch.factors[index]};
  }
  if (!batch.device_steps.empty()) {
    part.device_steps = {batch.device_steps[index]};
  }
  return part;
}

}  // namespace

Fp32Copies::Fp32Copies(const Batch& batch) : wide_(batch) {
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

void update_in_fp32(const Batch& batch, const std::function<void(const Batch& wide)>& update) {
  if (batch.parameters.empty() || batch.parameters[0].element_size() >= 4) {
    update(batch);
    return;
  }
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    const int64_t numel = batch.parameters[i].numel();
    for (int64_t begin = 0; begin < numel; begin += kFp32Chunk) {
      const Fp32Copies copies(part_of(batch, i, begin, std::min(kFp32Chunk, numel - begin)));
      update(copies.wide());
      copies.round_back();
    }
  }
}

}  // namespace lockstep::optim
