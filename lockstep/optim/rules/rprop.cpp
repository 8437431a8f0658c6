// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/rprop.h"

#include <ATen/ops/ones_like.h>

namespace lockstep::optim {
namespace {

constexpr size_t kRpropStepSize = 1;  // Index of the field.

}  // namespace

RuleTraits RpropRule::traits() {
  return {.name = "Rprop", .fields = {"prev", "step_size"}};
}

NamedOptions RpropRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"etas", &options.etas},
      {"step_sizes", &options.step_sizes},
      {"maximize", &options.maximize},
      {"capturable", &options.capturable}};
}

void RpropRule::check(const Options& options) {
  const char* rule = "Rprop";
  const auto [less, more] = options.etas;
  const auto [smallest, largest] = options.step_sizes;
  require_not_negative(rule, "lr", options.lr);
  require_option(less > 0 && less < 1, rule, "the first of etas", less, "above 0, below 1");
  require_option(more > 1, rule, "the second of etas", more, "above 1");
  require_not_negative(rule, "the first of step_sizes", smallest);
  require_option(
      largest >= smallest, rule, "the second of step_sizes", largest, "at least the first");
}

double RpropRule::initial(const Options& options, size_t field) {
  return field == kRpropStepSize ? options.lr : 0;
}

void RpropRule::update(const Options& options, const RuleCall& call) {
  for_each_chunk(call, [&](const std::vector<at::Tensor>& chunk, size_t /*index*/) {
    const at::Tensor& parameter = chunk[0];
    const at::Tensor& prev = chunk[2];
    const at::Tensor& step_size = chunk[2 + kRpropStepSize];
    at::Tensor gradient = options.maximize ? -chunk[1] : chunk[1];
    const at::Tensor agreement = gradient.mul(prev);
    const at::Tensor changed = agreement.lt(0);
    // A tensor of factors, so that they have the parameter's precision, as in torch.optim.
    const at::Tensor factor = at::ones_like(agreement)
                                  .masked_fill_(agreement.gt(0), options.etas.second)
                                  .masked_fill_(changed, options.etas.first);
    step_size.mul_(factor).clamp_(options.step_sizes.first, options.step_sizes.second);
    gradient = gradient.masked_fill(changed, 0);
    parameter.addcmul_(gradient.sign(), step_size, -1);
    prev.copy_(gradient);
  });
}

}  // namespace lockstep::optim
