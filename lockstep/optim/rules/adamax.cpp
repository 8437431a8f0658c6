// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/adamax.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>

namespace lockstep::optim {

RuleTraits AdamaxRule::traits() {
  return {.name = "Adamax", .fields = {"exp_avg", "exp_inf"}};
}

NamedOptions AdamaxRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"betas", &options.betas},
      {"eps", &options.eps},
      {"weight_decay", &options.weight_decay},
      {"maximize", &options.maximize},
      {"capturable", &options.capturable}};
}

void AdamaxRule::check(const Options& options) {
  require_adam_like("Adamax", options);
  require_not_negative("Adamax", "eps", options.eps);
}

void AdamaxRule::update(const Options& options, const RuleCall& call) {
  for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t index) {
    const at::Tensor& parameter = chunk[0];
    const at::Tensor& exp_avg = chunk[2];
    const at::Tensor& exp_inf = chunk[3];
    at::Tensor gradient = options.maximize ? -chunk[1] : chunk[1];
    if (options.weight_decay != 0) {
      gradient = gradient.add(parameter, options.weight_decay);
    }
    exp_avg.lerp_(gradient, 1 - options.betas.first);
    scale_(exp_inf, options.betas.second);
    // at::abs sizes its result when it runs, which a recorded graph cannot.
    at::Tensor magnitude = at::empty_like(gradient);
    at::abs_out(magnitude, gradient);
    exp_inf.copy_(at::maximum(exp_inf, magnitude.add_(options.eps)));
    if (!call.device_lr.defined()) {
      const double rate = options.lr / bias_correction(call, index, options.betas.first);
      parameter.addcdiv_(exp_avg, exp_inf, -rate);
      return;
    }
    const at::Tensor rate = call.device_lr.to(at::kDouble)
                                .div(device_bias_correction(call, index, options.betas.first));
    parameter.sub_(exp_avg.div(exp_inf).mul(device_factor(rate, exp_avg)));
  });
}

}  // namespace lockstep::optim
