// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rule.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ScalarOps.h>
#include <ATen/ops/full.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

// Of 4 Ki to 128 Ki elements the longest was the fastest for RMSprop and Lion (10M float32, one
// core), and a whole bucket at a time slower again: the calls cost more than a nearer cache saves.
constexpr int64_t kStretch = int64_t{1} << 17;

/// The memory of a dense tensor, whatever its strides.
at::Tensor memory_of(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

}  // namespace

void require_option(
    bool good, const char* rule, const char* option, double value, const char* want) {
  if (!good) {
    throw ConfigError(
        "optim",
        fmt::format("{}: {} is impossible; got {}, expected {}", rule, option, value, want));
  }
}

void for_each_stretch(
    const Batch& batch, const std::function<void(const std::vector<at::Tensor>& stretch)>& visit) {
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    std::vector<at::Tensor> whole = {memory_of(batch.parameters[i]), memory_of(batch.gradients[i])};
    for (const auto& field : batch.state) {
      whole.push_back(field[i].defined() ? memory_of(field[i]) : at::Tensor());
    }
    const int64_t numel = whole[0].numel();
    if (numel <= kStretch || !whole[0].is_cpu()) {
      visit(whole);
      continue;
    }
    std::vector<at::Tensor> stretch(whole.size());
    for (int64_t begin = 0; begin < numel; begin += kStretch) {
      for (size_t k = 0; k < whole.size(); ++k) {
        if (whole[k].defined()) {
          stretch[k] = whole[k].narrow(0, begin, std::min(kStretch, numel - begin));
        }
      }
      visit(stretch);
    }
  }
}

at::Tensor scale_(const at::Tensor& tensor, double factor) {
  tensor.mul_(at::native::wrapped_scalar_tensor(factor));
  return tensor;
}

std::vector<at::Tensor> step_tensors(const Batch& batch) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < batch.steps.size(); ++i) {
    if (i > 0 && batch.steps[i] == batch.steps[i - 1]) {
      tensors.push_back(tensors.back());
    } else {
      tensors.push_back(
          at::full({}, batch.steps[i], batch.parameters[i].options().dtype(at::kFloat)));
    }
  }
  return tensors;
}

}  // namespace lockstep::optim
