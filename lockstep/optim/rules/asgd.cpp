// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/asgd.h"

#include <algorithm>
#include <cmath>

namespace lockstep::optim {

RuleTraits ASGDRule::traits() {
  return {.name = "ASGD", .fields = {"ax"}, .scalars = {"eta", "mu"}};
}

NamedOptions ASGDRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"lambd", &options.lambd},
      {"alpha", &options.alpha},
      {"t0", &options.t0},
      {"weight_decay", &options.weight_decay},
      {"maximize", &options.maximize}};
}

void ASGDRule::check(const Options& options) {
  require_not_negative("ASGD", "lr", options.lr);
  require_not_negative("ASGD", "lambd", options.lambd);
  require_not_negative("ASGD", "weight_decay", options.weight_decay);
}

std::vector<double> ASGDRule::advance(
    const Options& options, int64_t step, std::vector<float>& scalars) {
  if (scalars.empty()) {
    scalars = {static_cast<float>(options.lr), 1};
  }
  const std::vector<double> now = {scalars[0], scalars[1]};
  const auto at = static_cast<double>(step);
  scalars[0] =
      static_cast<float>(options.lr / std::pow(1 + options.lambd * options.lr * at, options.alpha));
  scalars[1] = static_cast<float>(1 / std::max(1.0, at - options.t0));
  return now;
}

void ASGDRule::update(const Options& options, const RuleCall& call) {
  for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t index) {
    const double eta = call.factors[index].at(0);
    const double mu = call.factors[index].at(1);
    const at::Tensor& parameter = chunk[0];
    const at::Tensor& ax = chunk[2];
    at::Tensor gradient = options.maximize ? -chunk[1] : chunk[1];
    if (options.weight_decay != 0) {
      gradient = gradient.add(parameter, options.weight_decay);
    }
    scale_(parameter, 1 - options.lambd * eta).add_(gradient, -eta);
    if (mu == 1) {
      ax.copy_(parameter);
    } else {
      ax.add_(scale_(parameter.sub(ax), mu));
    }
  });
}

}  // namespace lockstep::optim
