// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update_in_fp32.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::optim {
namespace {

constexpr int64_t kWideStretch = int64_t{1} << 20;  // Elements.

/// Elements of one tensor, by its order in memory.
struct Part {
  int64_t begin;
  int64_t length;
  at::Tensor of(const at::Tensor& tensor) const {
    return tensor.defined() ? memory_of(tensor).narrow(0, begin, length) : at::Tensor();
  }
};

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kFloat) : at::Tensor();
}

void update_part(
    const Batch& batch,
    size_t index,
    const Part& part,
    const std::function<void(const Batch& wide)>& update) {
  const at::Tensor parameter = part.of(batch.parameters[index]);
  Batch wide{
      .parameters = {widened(parameter)},
      .gradients = {widened(part.of(batch.gradients[index]))},
      .state = {},
      .steps = {batch.steps[index]},
      .first = batch.first,
      .device_lr = batch.device_lr};
  if (!batch.device_steps.empty()) {
    wide.device_steps = {batch.device_steps[index]};
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> rounded = {{parameter, wide.parameters[0]}};
  for (const std::vector<at::Tensor>& field : batch.state) {
    const at::Tensor kept = part.of(field[index]);
    const at::Tensor& used = wide.state.emplace_back().emplace_back(widened(kept));
    if (kept.defined() && !used.is_same(kept)) {
      rounded.emplace_back(kept, used);
    }
  }
  update(wide);
  for (const auto& [to, from] : rounded) {
    to.copy_(from);
  }
}

}  // namespace

void update_in_fp32(const Batch& batch, const std::function<void(const Batch& wide)>& update) {
  if (batch.parameters.empty() || batch.parameters[0].element_size() >= 4) {
    update(batch);
    return;
  }
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    const int64_t numel = batch.parameters[i].numel();
    for (int64_t begin = 0; begin < numel; begin += kWideStretch) {
      update_part(batch, i, {begin, std::min(kWideStretch, numel - begin)}, update);
    }
  }
}

}  // namespace lockstep::optim
