// SPDX-License-Identifier: Apache-2.0
#include "lockstep/precision/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

constexpr const char* kName = "grad_scaler";

/// Returns whether `value`, rounded to fp32, is finite and above 0.
bool is_scale(double value) {
  return value >= std::numeric_limits<float>::denorm_min() &&
         value <= std::numeric_limits<float>::max();
}

bool finite_above(double value, double limit) {
  return std::isfinite(value) && value > limit;
}

/// Gradients of one device and dtype, which the kernel takes at once.
struct Gradients {
  std::vector<at::Tensor> tensors;
  at::Device device() const { return tensors[0].device(); }
  bool takes(const at::Tensor& gradient) const {
    return device() == gradient.device() && tensors[0].scalar_type() == gradient.scalar_type();
  }
};

std::vector<Gradients> gradients_of(const std::vector<at::Tensor>& parameters, bool allow_fp16) {
  std::vector<Gradients> groups;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor gradient = parameter.grad();
    if (!gradient.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    if (gradient.scalar_type() == at::kHalf && !allow_fp16) {
      throw ConfigError(
          kName,
          "a gradient is fp16, and would lose small values when it is unscaled; expected fp32 "
          "parameters with autocast; keep the model in fp32, or use ZeRO stages 1 to 3, which keep "
          "fp32 masters of fp16 parameters");
    }
    if (gradient.is_sparse()) {
      gradient = gradient._values();
    } else if (at::has_internal_overlap(gradient) == at::MemOverlap::Yes) {
      // An expanded one cannot be written to.
      gradient = gradient.contiguous();
      parameter.mutable_grad() = gradient;
    }
    const auto found = std::find_if(
        groups.begin(), groups.end(), [&](const Gradients& g) { return g.takes(gradient); });
    (found == groups.end() ? groups.emplace_back() : *found).tensors.push_back(gradient);
  }
  return groups;
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options, Group group)
    : options_(options), group_(std::move(group)) {
  check_options();
  place_on(at::kCPU);
}

void GradScaler::check_options() const {
  const auto fail = [](const char* option, double value, const char* expected) {
    throw ConfigError(
        kName, fmt::format("invalid {}; got {}, expected {}", option, value, expected));
  };
  if (!is_scale(options_.init_scale)) {
    fail("init_scale", options_.init_scale, "a number above 0 that fp32 can hold");
  }
  if (!finite_above(options_.growth_factor, 1)) {
    fail("growth_factor", options_.growth_factor, "a number above 1");
  }
  if (!finite_above(options_.backoff_factor, 0) || options_.backoff_factor >= 1) {
    fail("backoff_factor", options_.backoff_factor, "a number between 0 and 1");
  }
  if (options_.growth_interval < 1 ||
      options_.growth_interval > std::numeric_limits<int32_t>::max()) {
    fail("growth_interval", static_cast<double>(options_.growth_interval), "from 1 to 2147483647");
  }
}

void GradScaler::place_on(at::Device device) {
  if (!scale_.defined()) {
    const auto on_device = at::TensorOptions().device(device);
    scale_ = at::full({}, options_.init_scale, on_device.dtype(at::kFloat));
    growth_tracker_ = at::zeros({}, on_device.dtype(at::kInt));
  } else if (scale_.device() != device) {
    scale_ = scale_.to(device);
    growth_tracker_ = growth_tracker_.to(device);
  }
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) {
    return loss;
  }
  if (!scaled_) {
    place_on(loss.device());
    scaled_ = true;
  }
  return loss.mul(scale_.to(loss.device(), /*non_blocking=*/true));
}

void GradScaler::check_scaled(const char* where) const {
  if (!scaled_) {
    throw ConfigError(
        kName,
        fmt::format(
            "{} was called before any scale(), and would divide unscaled gradients by {}; try "
            "scaler.scale(loss).backward()",
            where,
            get_scale()));
  }
}

GradScaler::OptimizerState* GradScaler::find(const void* key) {
  for (OptimizerState& optimizer : optimizers_) {
    if (optimizer.key == key) {
      return &optimizer;
    }
  }
  return nullptr;
}

GradScaler::OptimizerState& GradScaler::unscaled(
    const void* key, const std::vector<at::Tensor>& parameters) {
  if (OptimizerState* known = find(key)) {
    return *known;
  }
  const c10::AutoGradMode no_grad(false);
  // fp64, so that the reciprocal of any scale is rounded once.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found = at::zeros_like(scale_);
  for (Gradients& gradients : gradients_of(parameters, options_.allow_fp16)) {
    at::Tensor found_here = at::zeros({}, scale_.options().device(gradients.device()));
    at::_amp_foreach_non_finite_check_and_unscale_(
        gradients.tensors, found_here, inverse.to(gradients.device(), /*non_blocking=*/true));
    found.add_(found_here.to(found.device(), /*non_blocking=*/true));
  }
  if (optimizers_.empty()) {
    found_inf_ = false;
  }
  return optimizers_.emplace_back(OptimizerState{key, found});
}

void GradScaler::unscale_(const void* key, const std::vector<at::Tensor>& parameters) {
  if (options_.enabled) {
    check_scaled("unscale_()");
    unscaled(key, parameters);
  }
}

void GradScaler::agree(OptimizerState& optimizer) {
  if (!optimizer.agreed) {
    if (group_.size() > 1) {  // On the host, which reads it anyway, and which all ranks have.
      optimizer.found_inf =
          group_.all_reduce(optimizer.found_inf.to(at::kCPU), ReduceOp::kMax).wait();
    }
    optimizer.agreed = true;
  }
}

bool GradScaler::step(
    const void* key,
    const std::vector<at::Tensor>& parameters,
    const std::function<void()>& update_parameters) {
  if (!options_.enabled) {
    update_parameters();
    return true;
  }
  check_scaled("step()");
  OptimizerState& optimizer = unscaled(key, parameters);
  if (optimizer.stepped) {
    throw ConfigError(
        kName, "step() was called twice for one optimizer; try update() after each iteration");
  }
  agree(optimizer);
  optimizer.stepped = true;
  if (optimizer.found_inf.item<float>() > 0) {
    found_inf_ = true;
    return false;
  }
  update_parameters();
  return true;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) {
    return;
  }
  check_scaled("update()");
  if (new_scale) {
    if (!is_scale(*new_scale)) {
      throw ConfigError(
          kName,
          fmt::format(
              "invalid new_scale; got {}, expected a number above 0 that fp32 can hold",
              *new_scale));
    }
    scale_.fill_(*new_scale);
  } else {
    if (optimizers_.empty()) {
      throw ConfigError(
          kName, "update() was called without a step() since the last one; call step() first");
    }
    at::Tensor found = at::zeros_like(scale_);
    for (OptimizerState& optimizer : optimizers_) {
      agree(optimizer);
      found.add_(optimizer.found_inf);
    }
    at::_amp_update_scale_(
        scale_,
        growth_tracker_,
        found,
        options_.growth_factor,
        options_.backoff_factor,
        options_.growth_interval);
  }
  optimizers_.clear();
}

double GradScaler::get_scale() const {
  return options_.enabled ? scale_.item<float>() : 1.0;
}

int64_t GradScaler::growth_tracker() const {
  return options_.enabled ? growth_tracker_.item<int32_t>() : 0;
}

nlohmann::json GradScaler::state() const {
  if (!options_.enabled) {
    return nlohmann::json::object();
  }
  return {
      {"scale", get_scale()},
      {"growth_tracker", growth_tracker()},
      {"growth_factor", options_.growth_factor},
      {"backoff_factor", options_.backoff_factor},
      {"growth_interval", options_.growth_interval}};
}

GradScaler::Saved GradScaler::parse(const nlohmann::json& state) {
  try {
    Saved saved;
    saved.scale = state.at("scale").get<double>();
    saved.growth_tracker = state.at("growth_tracker").get<int32_t>();
    saved.options.init_scale = saved.scale == 0 ? 1 : saved.scale;
    saved.options.growth_factor = state.at("growth_factor").get<double>();
    saved.options.backoff_factor = state.at("backoff_factor").get<double>();
    saved.options.growth_interval = state.at("growth_interval").get<int64_t>();
    const GradScaler trial(saved.options);
    if (saved.growth_tracker < 0) {
      throw ConfigError(
          kName,
          fmt::format("invalid growth_tracker; got {}, expected at least 0", saved.growth_tracker));
    }
    return saved;
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(
        kName,
        fmt::format(
            "invalid state; got {} ({}), expected the state of an enabled GradScaler",
            state.dump(),
            error.what()));
  }
}

void GradScaler::check_state(const nlohmann::json& state) const {
  if (options_.enabled) {
    parse(state);
  }
}

void GradScaler::load_state(const nlohmann::json& state) {
  if (!options_.enabled) {
    return;
  }
  const Saved saved = parse(state);
  if (saved.scale == 0) {
    log_warning(
        "the loss scale of this state is 0, since every update overflowed: the run had diverged, "
        "and every update will be skipped; load an earlier checkpoint, or set a scale with "
        "update(new_scale)");
  }
  options_ = saved.options;
  scale_.fill_(saved.scale);
  growth_tracker_.fill_(saved.growth_tracker);
  optimizers_.clear();
}

}  // namespace lockstep
