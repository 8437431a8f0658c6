// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/adagrad.h"

#include <ATen/ops/_fused_adagrad.h>

namespace lockstep::optim {

RuleTraits AdagradRule::traits() {
  return {.name = "Adagrad", .fields = {"sum"}, .eager_state = true};
}

NamedOptions AdagradRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"lr_decay", &options.lr_decay},
      {"weight_decay", &options.weight_decay},
      {"initial_accumulator_value", &options.initial_accumulator_value},
      {"eps", &options.eps},
      {"maximize", &options.maximize},
      {"capturable", &options.capturable}};
}

void AdagradRule::check(const Options& options) {
  const auto at_least_0 = [](const char* name, double value) {
    require_not_negative("Adagrad", name, value);
  };
  at_least_0("lr", options.lr);
  at_least_0("lr_decay", options.lr_decay);
  at_least_0("weight_decay", options.weight_decay);
  at_least_0("initial_accumulator_value", options.initial_accumulator_value);
  at_least_0("eps", options.eps);
}

double AdagradRule::initial(const Options& options, size_t /*field*/) {
  return options.initial_accumulator_value;
}

void AdagradRule::update(const Options& options, const RuleCall& call) {
  run_fused(call, [&](const RuleCall& padded) {
    with_rate(padded, options.lr, [&](const auto& lr) {
      at::_fused_adagrad_(
          padded.parameters,
          padded.gradients,
          padded.state[0],
          step_tensors(padded),
          lr,
          options.lr_decay,
          options.weight_decay,
          options.eps,
          options.maximize);
    });
  });
}

}  // namespace lockstep::optim
