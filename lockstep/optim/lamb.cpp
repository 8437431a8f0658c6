// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/lamb.h"

#include <cmath>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

namespace lockstep::optim {
namespace {

enum Field : size_t { kExpAvg, kExpAvgSq };

at::Tensor trust_ratio(
    const LAMBOptions& options, const at::Tensor& parameter, const at::Tensor& update) {
  const at::Tensor size = at::linalg_vector_norm(parameter);
  const at::Tensor update_size = at::linalg_vector_norm(update);
  const at::Tensor ratio = size.div(update_size).clamp_(options.min_coeff, options.max_coeff);
  return at::where(size.gt(0).logical_and_(update_size.gt(0)), ratio, at::ones_like(ratio));
}

}  // namespace

RuleTraits LAMBRule::traits() {
  return {.name = "LAMB", .fields = {"exp_avg", "exp_avg_sq"}, .elementwise = false};
}

NamedOptions LAMBRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"betas", &options.betas},
      {"eps", &options.eps},
      {"weight_decay", &options.weight_decay},
      {"bias_correction", &options.bias_correction},
      {"max_coeff", &options.max_coeff},
      {"min_coeff", &options.min_coeff}};
}

void LAMBRule::check(const Options& options) {
  const char* rule = "LAMB";
  require_adam_like(rule, options);
  require_not_negative(rule, "eps", options.eps);
  require_not_negative(rule, "min_coeff", options.min_coeff);
  require_option(
      options.max_coeff >= options.min_coeff,
      rule,
      "max_coeff",
      options.max_coeff,
      "at least min_coeff");
}

StateShape LAMBRule::shape(
    const Options& /*options*/, const at::Tensor& /*parameter*/, size_t /*field*/) {
  return StateShape::kParameter;
}

void LAMBRule::update(const Options& options, const Batch& batch) {
  const auto [beta1, beta2] = options.betas;
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    const at::Tensor& parameter = batch.parameters[i];
    const at::Tensor& gradient = batch.gradients[i];
    const at::Tensor& exp_avg = batch.state[kExpAvg][i];
    const at::Tensor& exp_avg_sq = batch.state[kExpAvgSq][i];
    scale_(exp_avg, beta1).add_(gradient, 1 - beta1);
    scale_(exp_avg_sq, beta2).addcmul_(gradient, gradient, 1 - beta2);

    const auto step = static_cast<double>(batch.steps[i]);
    const double correction1 = options.bias_correction ? 1 - std::pow(beta1, step) : 1;
    const double correction2 = options.bias_correction ? 1 - std::pow(beta2, step) : 1;
    at::Tensor update = exp_avg_sq.sqrt().div_(std::sqrt(correction2)).add_(options.eps);
    update = update.reciprocal_().mul_(exp_avg).div_(correction1);
    if (options.weight_decay != 0) {
      update.add_(parameter, options.weight_decay);
    }
    parameter.sub_(update.mul_(trust_ratio(options, parameter, update)), options.lr);
  }
}

}  // namespace lockstep::optim
