// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Dispatch.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>

namespace lockstep::optim {
namespace {

enum Field : size_t { kRowVar, kColVar, kVariance };

double machine_epsilon(at::ScalarType type) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "adafactor", [] {
    return static_cast<double>(std::numeric_limits<scalar_t>::epsilon());
  });
}

double root_mean_square(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor).item<double>() /
         std::sqrt(static_cast<double>(tensor.numel()));
}

/// The mean of the squares along `dim`, which is kept.
at::Tensor mean_square(const at::Tensor& gradient, int64_t dim) {
  return at::linalg_vector_norm(gradient, 2, dim, /*keepdim=*/true)
      .square_()
      .div_(gradient.size(dim));
}

void update_one(
    const AdafactorOptions& options,
    const at::Tensor& parameter,
    const at::Tensor& gradient,
    const at::Tensor& row_var,
    const at::Tensor& col_var,
    const at::Tensor& variance,
    int64_t step_count) {
  const auto step = static_cast<double>(step_count);
  const double epsilon = options.eps.first.value_or(machine_epsilon(parameter.scalar_type()));
  const double one_minus_beta2 = std::pow(step, options.beta2_decay);
  const double relative = std::min(options.lr, 1 / std::sqrt(step));
  const double alpha = std::max(options.eps.second, root_mean_square(parameter)) * relative;
  if (options.weight_decay != 0) {
    scale_(parameter, 1 - options.lr * options.weight_decay);
  }
  at::Tensor update;
  if (row_var.defined()) {
    row_var.lerp_(mean_square(gradient, -1), one_minus_beta2);
    col_var.lerp_(mean_square(gradient, -2), one_minus_beta2);
    update = at::matmul(row_var, col_var);
    update.div_(row_var.mean(-2, /*keepdim=*/true).clamp_min_(epsilon));
  } else {
    variance.lerp_(gradient.mul(gradient), one_minus_beta2);
    update = variance.clone();
  }
  update.clamp_min_(epsilon * epsilon).rsqrt_().mul_(gradient);
  const double clip = std::max(1.0, root_mean_square(update) / options.d);
  parameter.add_(update, -alpha / clip);
}

}  // namespace

RuleTraits AdafactorRule::traits() {
  return {.name = "Adafactor", .fields = {"row_var", "col_var", "variance"}, .elementwise = false};
}

NamedOptions AdafactorRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"beta2_decay", &options.beta2_decay},
      {"eps", &options.eps},
      {"d", &options.d},
      {"weight_decay", &options.weight_decay},
      {"maximize", &options.maximize}};
}

void AdafactorRule::check(const Options& options) {
  const char* rule = "Adafactor";
  require_not_negative(rule, "lr", options.lr);
  require_option(options.beta2_decay <= 0, rule, "beta2_decay", options.beta2_decay, "at most 0");
  const double first = options.eps.first.value_or(0);
  require_not_negative(rule, "eps[0]", first);
  require_not_negative(rule, "eps[1]", options.eps.second);
  require_option(options.d >= 1, rule, "d", options.d, "at least 1");
  require_not_negative(rule, "weight_decay", options.weight_decay);
}

StateShape AdafactorRule::shape(
    const Options& /*options*/, const at::Tensor& parameter, size_t field) {
  const bool factored = parameter.dim() > 1;
  if (field == kVariance) {
    return factored ? StateShape::kNone : StateShape::kParameter;
  }
  if (!factored) {
    return StateShape::kNone;
  }
  return field == kRowVar ? StateShape::kRow : StateShape::kColumn;
}

void AdafactorRule::update(const Options& options, const Batch& batch) {
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    update_one(
        options,
        batch.parameters[i],
        options.maximize ? -batch.gradients[i] : batch.gradients[i],
        batch.state[kRowVar][i],
        batch.state[kColVar][i],
        batch.state[kVariance][i],
        batch.steps[i]);
  }
}

}  // namespace lockstep::optim
