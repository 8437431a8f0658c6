// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/lion.h"

namespace lockstep::optim {

RuleTraits LionRule::traits() {
  return {.name = "Lion", .fields = {"exp_avg"}, .counts_steps = false};
}

NamedOptions LionRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"betas", &options.betas},
      {"weight_decay", &options.weight_decay},
      {"capturable", &options.capturable}};
}

void LionRule::check(const Options& options) {
  require_adam_like("Lion", options);
}

void LionRule::update(const Options& options, const RuleCall& call) {
  for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t /*index*/) {
    const at::Tensor& parameter = chunk[0];
    const at::Tensor& gradient = chunk[1];
    const at::Tensor& exp_avg = chunk[2];
    const at::Tensor direction = scale_(exp_avg.clone(), options.betas.first)
                                     .add_(gradient, 1 - options.betas.first)
                                     .sign_();
    if (options.weight_decay != 0) {
      decay_(parameter, options.weight_decay, call, options.lr);
    }
    descend_(parameter, direction, call, options.lr);
    scale_(exp_avg, options.betas.second).add_(gradient, 1 - options.betas.second);
  });
}

}  // namespace lockstep::optim
