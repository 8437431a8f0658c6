// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/adam.h"

#include <limits>
#include <vector>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

namespace lockstep::optim {
namespace {

struct AdamFields {
  enum : size_t { kExpAvg, kExpAvgSq, kMaxExpAvgSq };
};

RuleTraits adam_traits(const char* name) {
  return {.name = name, .fields = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}};
}

template <typename Options>
NamedOptions adam_options(Options& options) {
  return {
      {"lr", &options.lr},
      {"betas", &options.betas},
      {"eps", &options.eps},
      {"weight_decay", &options.weight_decay},
      {"amsgrad", &options.amsgrad},
      {"maximize", &options.maximize},
      {"bias_correction", &options.bias_correction},
      {"capturable", &options.capturable}};
}

template <typename Options>
void check_adam(const char* rule, const Options& options) {
  require_adam_like(rule, options);
  require_not_negative(rule, "eps", options.eps);
}

StateShape adam_shape(bool amsgrad, size_t field) {
  return field != AdamFields::kMaxExpAvgSq || amsgrad ? StateShape::kParameter : StateShape::kNone;
}

/// Returns infinite steps, so that beta^step is 0 and a correction exactly 1: the kernel has no
/// other switch.
std::vector<at::Tensor> endless_steps(const RuleCall& call) {
  const at::Tensor endless = at::full(
      {}, std::numeric_limits<double>::infinity(), call.parameters[0].options().dtype(at::kFloat));
  return std::vector<at::Tensor>(call.parameters.size(), endless);
}

template <typename Options, typename Kernel>
void update_adam(const Options& options, const RuleCall& call, const Kernel& kernel) {
  const at::TensorList none;
  run_fused(call, [&](const RuleCall& padded) {
    with_rate(padded, options.lr, [&](const auto& lr) {
      kernel(
          padded.parameters,
          padded.gradients,
          padded.state[AdamFields::kExpAvg],
          padded.state[AdamFields::kExpAvgSq],
          options.amsgrad ? at::TensorList(padded.state[AdamFields::kMaxExpAvgSq]) : none,
          options.bias_correction ? step_tensors(padded) : endless_steps(padded),
          lr,
          options.betas.first,
          options.betas.second,
          options.weight_decay,
          options.eps,
          options.amsgrad,
          options.maximize);
    });
  });
}

}  // namespace

RuleTraits AdamRule::traits() {
  return adam_traits("Adam");
}

NamedOptions AdamRule::named(Options& options) {
  return adam_options(options);
}

void AdamRule::check(const Options& options) {
  check_adam("Adam", options);
}

StateShape AdamRule::shape(const Options& options, at::IntArrayRef /*sizes*/, size_t field) {
  return adam_shape(options.amsgrad, field);
}

void AdamRule::update(const Options& options, const RuleCall& call) {
  update_adam(options, call, [](const auto&... arguments) { at::_fused_adam_(arguments...); });
}

RuleTraits AdamWRule::traits() {
  return adam_traits("AdamW");
}

NamedOptions AdamWRule::named(Options& options) {
  return adam_options(options);
}

void AdamWRule::check(const Options& options) {
  check_adam("AdamW", options);
}

StateShape AdamWRule::shape(const Options& options, at::IntArrayRef /*sizes*/, size_t field) {
  return adam_shape(options.amsgrad, field);
}

void AdamWRule::update(const Options& options, const RuleCall& call) {
  update_adam(options, call, [](const auto&... arguments) { at::_fused_adamw_(arguments...); });
}

}  // namespace lockstep::optim
