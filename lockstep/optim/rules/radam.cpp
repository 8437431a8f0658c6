// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/radam.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/where.h>

namespace lockstep::optim {
namespace {

// Longer moving averages of the second moment are used.
constexpr double kEnough = 5;

/// Numbers, or tensors of one: the length of the moving average of the second moment, and the
/// square of the factor by which the rate is rectified.
template <typename Number>
struct Rectified {
  Number length;
  Number factor_squared;
};

template <typename Number>
Rectified<Number> rectified(
    double beta2, const Number& steps, const Number& power, const Number& bias_correction2) {
  const double longest = 2 / (1 - beta2) - 1;
  const Number length = longest - 2 * steps * power / bias_correction2;
  return {length, (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)};
}

void radam_on_device(
    const RAdamOptions& options,
    const RuleCall& call,
    size_t index,
    const std::vector<at::Tensor>& chunk) {
  const at::Tensor& exp_avg = chunk[2];
  const at::Tensor correction1 = device_bias_correction(call, index, options.betas.first);
  const at::Tensor correction2 = device_bias_correction(call, index, options.betas.second);
  const at::Tensor steps = call.device_steps[index].to(at::kDouble);
  const auto [length, squared] =
      rectified<at::Tensor>(options.betas.second, steps, at::rsub(correction2, 1), correction2);
  const at::Tensor enough = length.gt(kEnough);
  const at::Tensor factor =
      at::where(enough, squared.mul(correction2).sqrt(), at::ones_like(squared));
  const at::Tensor rate = call.device_lr.to(at::kDouble).div(correction1).mul(factor);
  const at::Tensor root = chunk[3].sqrt().add_(options.eps);
  const at::Tensor divisor = at::where(enough.view({1}), root, at::ones_like(root));
  chunk[0].sub_(exp_avg.div(divisor).mul(device_factor(rate, exp_avg)));
}

void radam_on_host(
    const RAdamOptions& options,
    const RuleCall& call,
    size_t index,
    const std::vector<at::Tensor>& chunk) {
  const double correction1 = bias_correction(call, index, options.betas.first);
  const double correction2 = bias_correction(call, index, options.betas.second);
  const auto steps = static_cast<double>(call.steps[index]);
  const auto [length, squared] = rectified<double>(
      options.betas.second, steps, std::pow(options.betas.second, steps), correction2);
  const at::Tensor update = scale_(divided(chunk[2], correction1), options.lr);
  if (length > kEnough) {
    const at::Tensor adaptive = chunk[3].sqrt().add_(options.eps).reciprocal_();
    scale_(update.mul_(scale_(adaptive, std::sqrt(correction2))), std::sqrt(squared));
  }
  chunk[0].sub_(update);
}

}  // namespace

RuleTraits RAdamRule::traits() {
  return {.name = "RAdam", .fields = {"exp_avg", "exp_avg_sq"}};
}

NamedOptions RAdamRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"betas", &options.betas},
      {"eps", &options.eps},
      {"weight_decay", &options.weight_decay},
      {"decoupled_weight_decay", &options.decoupled_weight_decay},
      {"maximize", &options.maximize},
      {"capturable", &options.capturable}};
}

void RAdamRule::check(const Options& options) {
  require_adam_like("RAdam", options);
  require_not_negative("RAdam", "eps", options.eps);
}

void RAdamRule::update(const Options& options, const RuleCall& call) {
  for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t index) {
    const at::Tensor& parameter = chunk[0];
    at::Tensor gradient = options.maximize ? -chunk[1] : chunk[1];
    if (options.weight_decay != 0 && options.decoupled_weight_decay) {
      decay_(parameter, options.weight_decay, call, options.lr);
    } else if (options.weight_decay != 0) {
      gradient = gradient.add(parameter, options.weight_decay);
    }
    chunk[2].lerp_(gradient, 1 - options.betas.first);
    scale_(chunk[3], options.betas.second).addcmul_(gradient, gradient, 1 - options.betas.second);
    if (call.device_lr.defined()) {
      radam_on_device(options, call, index, chunk);
    } else {
      radam_on_host(options, call, index, chunk);
    }
  });
}

}  // namespace lockstep::optim
