// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/sgd.h"

#include <ATen/ops/_fused_sgd.h>

namespace lockstep::optim {
namespace {

// libtorch 2.13's fused kernel leaves half-precision parameters on the CPU unchanged, but for the
// last few elements; 2.15's does not.
bool fused_is_wrong(const at::Tensor& parameter) {
  return parameter.is_cpu() && parameter.element_size() == 2;
}

void update_chunk(const SGDOptions& options, const std::vector<at::Tensor>& chunk, bool first) {
  const at::Tensor& parameter = chunk[0];
  const at::Tensor& momentum_buffer = chunk[2];
  at::Tensor gradient = options.maximize ? -chunk[1] : chunk[1];
  if (options.weight_decay != 0) {
    gradient = gradient.add(parameter, options.weight_decay);
  }
  if (options.momentum != 0) {
    if (first) {
      momentum_buffer.copy_(gradient);
    } else {
      scale_(momentum_buffer, options.momentum).add_(gradient, 1 - options.dampening);
    }
    gradient = options.nesterov ? gradient.add(momentum_buffer, options.momentum) : momentum_buffer;
  }
  parameter.add_(gradient, -options.lr);
}

}  // namespace

RuleTraits SGDRule::traits() {
  return {.name = "SGD", .fields = {"momentum_buffer"}, .counts_steps = false};
}

NamedOptions SGDRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"momentum", &options.momentum},
      {"dampening", &options.dampening},
      {"weight_decay", &options.weight_decay},
      {"nesterov", &options.nesterov},
      {"maximize", &options.maximize},
      {"capturable", &options.capturable}};
}

void SGDRule::check(const Options& options) {
  require_not_negative("SGD", "lr", options.lr);
  require_not_negative("SGD", "momentum", options.momentum);
  require_not_negative("SGD", "weight_decay", options.weight_decay);
  require_option(
      !options.nesterov || options.momentum > 0,
      "SGD",
      "momentum",
      options.momentum,
      "more than 0, which nesterov needs");
  require_option(
      !options.nesterov || options.dampening == 0,
      "SGD",
      "dampening",
      options.dampening,
      "0, which nesterov needs");
}

StateShape SGDRule::shape(const Options& options, at::IntArrayRef /*sizes*/, size_t /*field*/) {
  return options.momentum != 0 ? StateShape::kParameter : StateShape::kNone;
}

void SGDRule::update(const Options& options, const RuleCall& call) {
  if (fused_is_wrong(call.parameters[0])) {
    for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t /*index*/) {
      update_chunk(options, chunk, call.first);
    });
    return;
  }
  const at::TensorList none;
  run_fused(call, [&](const RuleCall& padded) {
    with_rate(padded, options.lr, [&](const auto& lr) {
      at::_fused_sgd_(
          padded.parameters,
          padded.gradients,
          options.momentum != 0 ? at::TensorList(padded.state[0]) : none,
          options.weight_decay,
          options.momentum,
          lr,
          options.dampening,
          options.nesterov,
          options.maximize,
          padded.first);
    });
  });
}

}  // namespace lockstep::optim
