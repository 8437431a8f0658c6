// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameters/schedule_of.h"

#include <functional>
#include <map>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/schedule/decay_schedules.h"
#include "lockstep/schedule/deepspeed_schedules.h"
#include "lockstep/schedule/ramp_schedules.h"

namespace lockstep::ds_config {
namespace {

using schedule::Schedule;

std::optional<int64_t> integer_if_given(const Parameters& from, const std::string& name) {
  return from.has(name) ? std::optional(from.integer(name)) : std::nullopt;
}

schedule::DeepSpeedWarmup warmup_type(const Parameters& from) {
  return from.text("warmup_type") == "linear" ? schedule::DeepSpeedWarmup::kLinear
                                              : schedule::DeepSpeedWarmup::kLog;
}

Schedule warmup(const Parameters& from) {
  return schedule::deepspeed_warmup(
      {.warmup_min_lr = from.numbers("warmup_min_lr"),
       .warmup_max_lr =
           from.has("warmup_max_lr") ? from.numbers("warmup_max_lr") : std::vector<double>{},
       .warmup_num_steps = from.integer("warmup_num_steps"),
       .warmup_type = warmup_type(from)});
}

/// Stays at its last rate after the end, as DeepSpeed's: a run may make more updates.
Schedule warmup_decay(const Parameters& from) {
  return schedule::deepspeed_warmup_decay({.total_num_steps = from.integer("total_num_steps"),
                                           .warmup_min_lr = from.numbers("warmup_min_lr"),
                                           .warmup_max_lr = from.numbers("warmup_max_lr"),
                                           .warmup_num_steps = from.integer("warmup_num_steps"),
                                           .warmup_type = warmup_type(from)})
      .without_end();
}

Schedule warmup_cosine(const Parameters& from) {
  return schedule::deepspeed_warmup_cosine({.total_num_steps = from.integer("total_num_steps"),
                                            .warmup_min_ratio = from.number("warmup_min_ratio"),
                                            .warmup_num_steps = from.integer("warmup_num_steps"),
                                            .cos_min_ratio = from.number("cos_min_ratio"),
                                            .warmup_type = warmup_type(from)})
      .without_end();
}

Schedule one_cycle(const Parameters& from) {
  return schedule::deepspeed_one_cycle(
      {.cycle_min_lr = from.numbers("cycle_min_lr"),
       .cycle_max_lr = from.numbers("cycle_max_lr"),
       .decay_lr_rate = from.number("decay_lr_rate"),
       .cycle_first_step_size = from.integer("cycle_first_step_size"),
       .cycle_second_step_size = integer_if_given(from, "cycle_second_step_size"),
       .cycle_first_stair_count = from.integer("cycle_first_stair_count"),
       .cycle_second_stair_count = integer_if_given(from, "cycle_second_stair_count"),
       .decay_step_size = from.integer("decay_step_size"),
       .cycle_momentum = from.flag("cycle_momentum"),
       .cycle_min_mom = from.numbers("cycle_min_mom"),
       .cycle_max_mom = from.numbers("cycle_max_mom"),
       .decay_mom_rate = from.number("decay_mom_rate")});
}

Schedule lr_range_test(const Parameters& from) {
  return schedule::deepspeed_lr_range_test(
      {.lr_range_test_min_lr = from.numbers("lr_range_test_min_lr"),
       .lr_range_test_step_size = from.integer("lr_range_test_step_size"),
       .lr_range_test_step_rate = from.number("lr_range_test_step_rate"),
       .lr_range_test_staircase = from.flag("lr_range_test_staircase")});
}

Schedule step_lr(const Parameters& from) {
  return schedule::step_decay(
      {.step_size = from.integer("step_size"), .gamma = from.number("gamma")});
}

Schedule multi_step_lr(const Parameters& from) {
  const std::vector<double>& milestones = from.numbers("milestones");
  return schedule::multi_step_decay(
      {.milestones = {milestones.begin(), milestones.end()}, .gamma = from.number("gamma")});
}

Schedule exponential_lr(const Parameters& from) {
  return schedule::exponential_decay({.gamma = from.number("gamma")});
}

/// Continues at 0, as torch's.
Schedule polynomial_lr(const Parameters& from) {
  return schedule::polynomial_decay(
             {.total_steps = from.integer("total_iters"), .power = from.number("power")})
      .without_end();
}

Schedule cosine_annealing_lr(const Parameters& from) {
  return schedule::cosine_annealing(
      {.half_period_steps = from.integer("T_max"), .min_lr = from.number("eta_min")});
}

Schedule cosine_warm_restarts(const Parameters& from) {
  return schedule::cosine_warm_restarts(
      {.first_cycle_steps = from.integer("T_0"),
       .cycle_factor = from.integer("T_mult"),
       .min_lr = from.number("eta_min")});
}

Schedule constant_lr(const Parameters& from) {
  return schedule::constant_factor(
      {.factor = from.number("factor"), .num_steps = from.integer("total_iters")});
}

Schedule linear_lr(const Parameters& from) {
  return schedule::linear_factor(
      {.start_factor = from.number("start_factor"),
       .end_factor = from.number("end_factor"),
       .num_steps = from.integer("total_iters")});
}

Schedule cyclic_lr(const Parameters& from) {
  const std::string& mode = from.text("mode");
  return schedule::cyclic(
      {.base_lr = from.numbers("base_lr"),
       .max_lr = from.numbers("max_lr"),
       .step_size_up = from.integer("step_size_up"),
       .step_size_down = integer_if_given(from, "step_size_down"),
       .mode = mode == "triangular2" ? schedule::CyclicMode::kTriangular2
               : mode == "exp_range" ? schedule::CyclicMode::kExpRange
                                     : schedule::CyclicMode::kTriangular,
       .gamma = from.number("gamma"),
       .cycle_momentum = from.flag("cycle_momentum"),
       .base_momentum = from.numbers("base_momentum"),
       .max_momentum = from.numbers("max_momentum")});
}

Schedule one_cycle_lr(const Parameters& from) {
  return schedule::one_cycle(
      {.max_lr = from.numbers("max_lr"),
       .total_steps = from.integer("total_steps"),
       .pct_start = from.number("pct_start"),
       .anneal_strategy = from.text("anneal_strategy") == "linear" ? schedule::Anneal::kLinear
                                                                   : schedule::Anneal::kCosine,
       .cycle_momentum = from.flag("cycle_momentum"),
       .base_momentum = from.number("base_momentum"),
       .max_momentum = from.number("max_momentum"),
       .div_factor = from.number("div_factor"),
       .final_div_factor = from.number("final_div_factor"),
       .three_phase = from.flag("three_phase")});
}

}  // namespace

schedule::Schedule schedule_of(const SchedulerSection& section) {
  static const std::map<std::string, std::function<Schedule(const Parameters&)>> makers = {
      {"WarmupLR", warmup},
      {"WarmupDecayLR", warmup_decay},
      {"WarmupCosineLR", warmup_cosine},
      {"OneCycle", one_cycle},
      {"LRRangeTest", lr_range_test},
      {"StepLR", step_lr},
      {"MultiStepLR", multi_step_lr},
      {"ExponentialLR", exponential_lr},
      {"PolynomialLR", polynomial_lr},
      {"CosineAnnealingLR", cosine_annealing_lr},
      {"CosineAnnealingWarmRestarts", cosine_warm_restarts},
      {"ConstantLR", constant_lr},
      {"LinearLR", linear_lr},
      {"CyclicLR", cyclic_lr},
      {"OneCycleLR", one_cycle_lr}};
  const auto maker = makers.find(section.name.value);
  LOCKSTEP_ASSERT(maker != makers.end(), "a schedule of the table without a constructor");
  return maker->second(section.parameters);
}

}  // namespace lockstep::ds_config
