// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/nadam.h"

#include <cmath>

namespace lockstep::optim {
namespace {

/// The factors that `advance` returns.
struct NAdamFactors {
  double bias_correction2;
  double of_gradient;  ///< Both include the negative rate.
  double of_average;
};

double nadam_momentum(const NAdamOptions& options, double step) {
  return options.betas.first * (1 - 0.5 * std::pow(0.96, step * options.momentum_decay));
}

}  // namespace

RuleTraits NAdamRule::traits() {
  return {.name = "NAdam", .fields = {"exp_avg", "exp_avg_sq"}, .scalars = {"mu_product"}};
}

NamedOptions NAdamRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"betas", &options.betas},
      {"eps", &options.eps},
      {"weight_decay", &options.weight_decay},
      {"momentum_decay", &options.momentum_decay},
      {"decoupled_weight_decay", &options.decoupled_weight_decay},
      {"maximize", &options.maximize}};
}

void NAdamRule::check(const Options& options) {
  require_adam_like("NAdam", options);
  require_not_negative("NAdam", "eps", options.eps);
  require_not_negative("NAdam", "momentum_decay", options.momentum_decay);
}

std::vector<double> NAdamRule::advance(
    const Options& options, int64_t step, std::vector<float>& scalars) {
  const auto at = static_cast<double>(step);
  const double mu = nadam_momentum(options, at);
  const double next = nadam_momentum(options, at + 1);
  if (scalars.empty()) {
    scalars = {1};
  }
  scalars[0] *= static_cast<float>(mu);  // In float32, as torch.optim's.
  const double product = scalars[0];
  return {
      1 - std::pow(options.betas.second, at),
      -options.lr * (1 - mu) / (1 - product),
      -options.lr * next / (1 - product * next)};
}

void NAdamRule::update(const Options& options, const RuleCall& call) {
  for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t index) {
    const std::vector<double>& all = call.factors[index];
    const NAdamFactors factors = {all.at(0), all.at(1), all.at(2)};
    const at::Tensor& parameter = chunk[0];
    const at::Tensor& exp_avg = chunk[2];
    const at::Tensor& exp_avg_sq = chunk[3];
    at::Tensor gradient = options.maximize ? -chunk[1] : chunk[1];
    if (options.weight_decay != 0 && options.decoupled_weight_decay) {
      decay_(parameter, options.weight_decay, call, options.lr);
    } else if (options.weight_decay != 0) {
      gradient = gradient.add(parameter, options.weight_decay);
    }
    exp_avg.lerp_(gradient, 1 - options.betas.first);
    scale_(exp_avg_sq, options.betas.second).addcmul_(gradient, gradient, 1 - options.betas.second);
    const at::Tensor root = divided(exp_avg_sq, factors.bias_correction2).sqrt_().add_(options.eps);
    parameter.addcdiv_(gradient, root, factors.of_gradient);
    parameter.addcdiv_(exp_avg, root, factors.of_average);
  });
}

}  // namespace lockstep::optim
