// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/rmsprop.h"

namespace lockstep::optim {
namespace {

struct RmsPropFields {
  enum : size_t { kSquareAvg, kMomentumBuffer, kGradAvg };
};

}  // namespace

RuleTraits RMSpropRule::traits() {
  return {.name = "RMSprop", .fields = {"square_avg", "momentum_buffer", "grad_avg"}};
}

NamedOptions RMSpropRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"alpha", &options.alpha},
      {"eps", &options.eps},
      {"weight_decay", &options.weight_decay},
      {"momentum", &options.momentum},
      {"centered", &options.centered},
      {"maximize", &options.maximize},
      {"capturable", &options.capturable}};
}

void RMSpropRule::check(const Options& options) {
  const auto at_least_0 = [](const char* name, double value) {
    require_not_negative("RMSprop", name, value);
  };
  at_least_0("lr", options.lr);
  at_least_0("alpha", options.alpha);
  at_least_0("eps", options.eps);
  at_least_0("weight_decay", options.weight_decay);
  at_least_0("momentum", options.momentum);
}

StateShape RMSpropRule::shape(const Options& options, at::IntArrayRef /*sizes*/, size_t field) {
  const bool used = field == RmsPropFields::kSquareAvg ||
                    (field == RmsPropFields::kMomentumBuffer && options.momentum > 0) ||
                    (field == RmsPropFields::kGradAvg && options.centered);
  return used ? StateShape::kParameter : StateShape::kNone;
}

void RMSpropRule::update(const Options& options, const RuleCall& call) {
  for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t /*index*/) {
    const at::Tensor& parameter = chunk[0];
    const at::Tensor* state = &chunk[2];
    at::Tensor gradient = options.maximize ? -chunk[1] : chunk[1];
    if (options.weight_decay != 0) {
      gradient = gradient.add(parameter, options.weight_decay);
    }
    const at::Tensor& square_avg = state[RmsPropFields::kSquareAvg];
    scale_(square_avg, options.alpha).addcmul_(gradient, gradient, 1 - options.alpha);
    at::Tensor root;
    if (options.centered) {
      const at::Tensor& grad_avg = state[RmsPropFields::kGradAvg];
      grad_avg.lerp_(gradient, 1 - options.alpha);
      root = square_avg.addcmul(grad_avg, grad_avg, -1).sqrt_();
    } else {
      root = square_avg.sqrt();
    }
    root.add_(options.eps);
    if (options.momentum > 0) {
      scale_(state[RmsPropFields::kMomentumBuffer], options.momentum).addcdiv_(gradient, root);
      descend_(parameter, state[RmsPropFields::kMomentumBuffer], call, options.lr);
    } else if (call.device_lr.defined()) {
      descend_(parameter, gradient.div(root), call, options.lr);
    } else {
      parameter.addcdiv_(gradient, root, -options.lr);
    }
  });
}

}  // namespace lockstep::optim
