// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/adadelta.h"

namespace lockstep::optim {

RuleTraits AdadeltaRule::traits() {
  return {.name = "Adadelta", .fields = {"square_avg", "acc_delta"}};
}

NamedOptions AdadeltaRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"rho", &options.rho},
      {"eps", &options.eps},
      {"weight_decay", &options.weight_decay},
      {"maximize", &options.maximize},
      {"capturable", &options.capturable}};
}

void AdadeltaRule::check(const Options& options) {
  const char* rule = "Adadelta";
  require_not_negative(rule, "lr", options.lr);
  require_option(options.rho >= 0 && options.rho <= 1, rule, "rho", options.rho, "from 0 to 1");
  require_not_negative(rule, "eps", options.eps);
  require_not_negative(rule, "weight_decay", options.weight_decay);
}

void AdadeltaRule::update(const Options& options, const RuleCall& call) {
  for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t /*index*/) {
    const at::Tensor& parameter = chunk[0];
    const at::Tensor& square_avg = chunk[2];
    const at::Tensor& acc_delta = chunk[3];
    at::Tensor gradient = options.maximize ? -chunk[1] : chunk[1];
    if (options.weight_decay != 0) {
      gradient = gradient.add(parameter, options.weight_decay);
    }
    scale_(square_avg, options.rho).addcmul_(gradient, gradient, 1 - options.rho);
    const at::Tensor root = square_avg.add(options.eps).sqrt_();
    const at::Tensor delta = acc_delta.add(options.eps).sqrt_().div_(root).mul_(gradient);
    scale_(acc_delta, options.rho).addcmul_(delta, delta, 1 - options.rho);
    descend_(parameter, delta, call, options.lr);
  });
}

}  // namespace lockstep::optim
