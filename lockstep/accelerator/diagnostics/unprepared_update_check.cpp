// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/unprepared_update_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/argmax.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/parameters.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep::internal {
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

// --- ParameterSamples

void ParameterSamples::watch(NamedTensors parameters) {
  parameters_ = std::move(parameters);
  std::stable_sort(
      parameters_.begin(), parameters_.end(), [](const NamedTensor& a, const NamedTensor& b) {
        return a.tensor.numel() < b.tensor.numel();
      });
  samples_.clear();
  at_begin_.clear();
}

void ParameterSamples::begin() {
  at_begin_.clear();
  if (micro_steps_left_ == 0) {
    return;
  }
  for (const NamedTensor& parameter : parameters_) {
    if (at_begin_.size() == kMostCopied) {
      return;
    }
    at_begin_.push_back(
        {parameter.tensor.unsafeGetTensorImpl(), first_elements(parameter.tensor).clone()});
  }
}

bool ParameterSamples::is_as_at_begin(const Sample& sample, double now) const {
  const auto found =
      std::find_if(at_begin_.begin(), at_begin_.end(), [&](const FirstElements& first) {
        return first.parameter == sample.parameter.tensor.unsafeGetTensorImpl();
      });
  return found != at_begin_.end() && sample.index < found->values.numel() &&
         is_about(now, found->values[sample.index].item<double>());
}

void ParameterSamples::note() {
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

void ParameterSamples::note(const NamedTensor& parameter) {
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

std::optional<NamedTensor> ParameterSamples::changed_again() {
  if (samples_.empty()) {
    return std::nullopt;
  }
  const std::optional<NamedTensor> now = changed();
  samples_.clear();
  const bool before = std::exchange(has_changed_, now.has_value());
  return before ? now : std::nullopt;
}

std::optional<NamedTensor> ParameterSamples::changed() const {
  for (const Sample& sample : samples_) {
    const double now = first_elements(sample.parameter.tensor)[sample.index].item<double>();
    if (!is_about(now, sample.value) && !is_as_at_begin(sample, now)) {
      return sample.parameter;
    }
  }
  return std::nullopt;
}

// --- UnpreparedUpdateCheck

void UnpreparedUpdateCheck::objects_prepared() {
  if (watched_models_ != objects_.models.size()) {
    samples_.forget();  // prepare() has given the new models rank 0's weights.
    watched_models_ = objects_.models.size();
  }
  if ((step_.accumulation().num_steps == 1 && step_.scaler() == nullptr) || objects_.sharding) {
    samples_.watch({});
    return;
  }
  std::set<const void*> guarded;  // The step of their optimizer refuses such calls itself.
  for (const Optimizer& optimizer : objects_.optimizers) {
    if (dynamic_cast<const optim::FlatOptimizer*>(&optimizer.inner()) != nullptr) {
      for (const at::Tensor& parameter : optimizer.parameters()) {
        guarded.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  NamedTensors watched;
  for (const PreparedModel& model : objects_.models) {
    for (const NamedTensor& item : trainable(model.parameters())) {
      if (!guarded.contains(item.tensor.unsafeGetTensorImpl())) {
        watched.push_back({model.prefix + item.name, item.tensor});
      }
    }
  }
  samples_.watch(std::move(watched));
}

void UnpreparedUpdateCheck::loss_given(const GivenLoss& /*given*/) {
  if (!step_.position().in_micro_step) {
    refuse_unprepared_update();
  }
}

void UnpreparedUpdateCheck::backward_ended() {
  const AccumulationPosition& position = step_.position();
  if (step_.scaler() != nullptr || (position.in_micro_step && !position.sync_gradients)) {
    updates_when_noted_ = step_.updates();
    samples_.note();
  }
}

void UnpreparedUpdateCheck::refuse_unprepared_update() {
  if (updates_when_noted_ != step_.updates()) {
    samples_.forget();
    return;
  }
  const std::optional<NamedTensor> changed = samples_.changed_again();
  if (!changed) {
    return;
  }
  const AccumulationPosition& position = step_.position();
  const bool is_prepared = objects_.is_in_optimizer(changed->tensor);
  const bool is_scaled = step_.scaler() != nullptr && position.sync_gradients;
  const std::string_view remedy =
      is_prepared && is_scaled
          ? "call step() of the optimizer that prepare returned, and move code that writes to "
            "parameters after it"
      : is_prepared
          ? "call step() of the optimizer that prepare returned, and run code that writes to "
            "parameters only where sync_gradients() is true"
          : "pass the parameter's optimizer to prepare, and use the one that prepare returns";
  if (is_scaled) {
    throw ConfigError(
        "backward",
        fmt::format(
            "parameter {} was changed before its gradient was unscaled (fp16 loss scale {}); {}",
            changed->name,
            step_.scaler()->get_scale(),
            remedy));
  }
  throw ConfigError(
      "accumulate",
      fmt::format(
          "parameter {} was changed after micro-step {} of {}, before the gradients were averaged; "
          "{}",
          changed->name,
          position.in_group,
          step_.accumulation().num_steps,
          remedy));
}

void UnpreparedUpdateCheck::objects_forgotten() {
  samples_.watch({});
  watched_models_ = 0;
}

}  // namespace lockstep::internal
