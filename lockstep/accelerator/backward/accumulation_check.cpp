// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/accumulation_check.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/abs.h>
#include <ATen/ops/argmax.h>
#include <c10/core/GradMode.h>

namespace lockstep {
namespace {

constexpr size_t kMostSamples = 8;
/// Elements of a gradient that are searched for the largest one.
constexpr int64_t kMostElementsSearched = 4096;
/// Limits the copied elements; note() prefers the smallest parameters.
constexpr size_t kMostCopied = 64;
/// A write that the opposite one undoes leaves a rounding error.
constexpr double kRoundingTolerance = 1e-6;

at::Tensor first_elements(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().reshape({-1});
  return flat.narrow(0, 0, std::min(flat.numel(), kMostElementsSearched));
}

bool is_about(double now, double then) {
  return std::abs(now - then) <= kRoundingTolerance * std::abs(then);
}

}  // namespace

void AccumulationCheck::watch(NamedTensors parameters) {
  parameters_ = std::move(parameters);
  std::stable_sort(
      parameters_.begin(), parameters_.end(), [](const NamedTensor& a, const NamedTensor& b) {
        return a.tensor.numel() < b.tensor.numel();
      });
  samples_.clear();
  begins_.clear();
}

void AccumulationCheck::begin() {
  begins_.clear();
  if (micro_steps_left_ == 0) {
    return;
  }
  for (const NamedTensor& parameter : parameters_) {
    if (begins_.size() == kMostCopied) {
      return;
    }
    begins_.push_back(
        {parameter.tensor.unsafeGetTensorImpl(), first_elements(parameter.tensor).clone()});
  }
}

bool AccumulationCheck::is_as_at_begin(const Sample& sample, double now) const {
  const auto found = std::find_if(begins_.begin(), begins_.end(), [&](const Begin& begin) {
    return begin.parameter == sample.parameter.tensor.unsafeGetTensorImpl();
  });
  return found != begins_.end() && sample.index < found->values.numel() &&
         is_about(now, found->values[sample.index].item<double>());
}

void AccumulationCheck::note() {
  if (parameters_.empty() || micro_steps_left_ == 0) {
    return;
  }
  if (samples_.empty()) {
    --micro_steps_left_;
  }
  const c10::AutoGradMode no_grad(false);
  const size_t most = samples_.size() + kMostSamples;  // Another backward reaches other models.
  for (const NamedTensor& parameter : parameters_) {
    if (samples_.size() == most) {
      return;
    }
    const bool noted = std::any_of(samples_.begin(), samples_.end(), [&](const Sample& sample) {
      return sample.parameter.tensor.is_same(parameter.tensor);
    });
    if (!noted) {
      note(parameter);
    }
  }
}

void AccumulationCheck::note(const NamedTensor& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided || gradient.numel() == 0) {
    return;
  }
  const at::Tensor sizes = first_elements(gradient).abs();
  const int64_t index = sizes.argmax().item<int64_t>();
  if (sizes[index].item<double>() > 0) {
    samples_.push_back({parameter, index, first_elements(parameter.tensor)[index].item<double>()});
  }
}

std::optional<NamedTensor> AccumulationCheck::changed_again() {
  if (samples_.empty()) {
    return std::nullopt;
  }
  const std::optional<NamedTensor> now = changed();
  samples_.clear();
  const bool before = std::exchange(has_changed_, now.has_value());
  return before ? now : std::nullopt;
}

std::optional<NamedTensor> AccumulationCheck::changed() const {
  for (const Sample& sample : samples_) {
    const double now = first_elements(sample.parameter.tensor)[sample.index].item<double>();
    if (!is_about(now, sample.value) && !is_as_at_begin(sample, now)) {
      return sample.parameter;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
