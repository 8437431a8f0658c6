// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/lamb.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace lockstep::optim {
namespace {

struct LambFields {
  enum : size_t { kExpAvg, kExpAvgSq };
};

at::Tensor trust_ratio(
    const LAMBOptions& options, const at::Tensor& size, const at::Tensor& update_size) {
  const at::Tensor ratio = size.div(update_size).clamp_(options.min_coeff, options.max_coeff);
  return at::where(size.gt(0).logical_and_(update_size.gt(0)), ratio, at::ones_like(ratio));
}

/// Divides `moment` by 1 - beta^step, or by its root.
void correct_(
    const at::Tensor& moment, const RuleCall& call, size_t index, double beta, bool root) {
  if (call.device_steps.empty()) {
    const double correction = bias_correction(call, index, beta);
    moment.div_(root ? std::sqrt(correction) : correction);
    return;
  }
  const at::Tensor correction = device_bias_correction(call, index, beta);
  memory_of(moment).div_(device_factor(root ? correction.sqrt() : correction, moment));
}

/// Updates the moments of tensor `i`. Returns its update before the trust ratio, of its shape.
at::Tensor unscaled_update(const LAMBOptions& options, const RuleCall& call, size_t i) {
  const auto [beta1, beta2] = options.betas;
  const at::Tensor& gradient = call.gradients[i];
  const at::Tensor& exp_avg = call.state[LambFields::kExpAvg][i];
  const at::Tensor& exp_avg_sq = call.state[LambFields::kExpAvgSq][i];
  scale_(exp_avg, beta1).add_(gradient, 1 - beta1);
  scale_(exp_avg_sq, beta2).addcmul_(gradient, gradient, 1 - beta2);
  at::Tensor update;
  if (options.eps_inside_sqrt) {
    update = exp_avg_sq.clone();
    if (options.bias_correction) {
      correct_(update, call, i, beta2, /*root=*/false);
    }
    update.add_(options.eps).sqrt_();
  } else {
    update = exp_avg_sq.sqrt();
    if (options.bias_correction) {
      correct_(update, call, i, beta2, /*root=*/true);
    }
    update.add_(options.eps);
  }
  update.reciprocal_().mul_(exp_avg);
  if (options.bias_correction) {
    correct_(update, call, i, beta1, /*root=*/false);
  }
  if (options.weight_decay != 0) {
    update.add_(call.parameters[i], options.weight_decay);
  }
  return update;
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
      {"eps_inside_sqrt", &options.eps_inside_sqrt},
      {"max_coeff", &options.max_coeff},
      {"min_coeff", &options.min_coeff},
      {"capturable", &options.capturable}};
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

void LAMBRule::update(const Options& options, const RuleCall& call) {
  for (size_t i = 0; i < call.parameters.size(); ++i) {
    const at::Tensor& parameter = call.parameters[i];
    const at::Tensor update = unscaled_update(options, call, i);
    const at::Tensor ratio =
        trust_ratio(options, at::linalg_vector_norm(parameter), at::linalg_vector_norm(update));
    descend_(parameter, update.mul_(ratio), call, options.lr);
  }
}

void LAMBRule::update_sharded(const Options& options, const ShardedRuleCall& call) {
  const RuleCall& slices = call.slices;
  const auto count = static_cast<int64_t>(call.full_parameters.size());
  const at::Tensor squares = at::zeros({2, count}, call.options.dtype(at::kDouble));
  std::vector<at::Tensor> updates;
  for (size_t i = 0; i < slices.parameters.size(); ++i) {
    updates.push_back(unscaled_update(options, slices, i));
    const auto full = static_cast<int64_t>(call.full_index[i]);
    squares[0][full].copy_(at::linalg_vector_norm(slices.parameters[i])).square_();
    squares[1][full].copy_(at::linalg_vector_norm(updates.back())).square_();
  }
  Group ranks = call.ranks;
  const at::Tensor sizes = ranks.all_reduce(squares).wait().sqrt().to(call.options.dtype());
  for (size_t i = 0; i < updates.size(); ++i) {
    const auto full = static_cast<int64_t>(call.full_index[i]);
    const at::Tensor ratio = trust_ratio(options, sizes[0][full], sizes[1][full]);
    descend_(slices.parameters[i], updates[i].mul_(ratio), slices, options.lr);
  }
}

}  // namespace lockstep::optim
