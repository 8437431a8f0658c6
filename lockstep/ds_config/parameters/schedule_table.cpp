// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameters/parameter_specs.h"

namespace lockstep::ds_config {
namespace {

constexpr double kAboveZero = std::numeric_limits<double>::min();

ParameterSpec at_most(ParameterSpec spec, double most) {
  spec.key.most = most;
  return spec;
}

/// Allows "auto", for which Accelerate fills in the optimizer's rate, or 0.
ParameterSpec auto_allowed(ParameterSpec spec) {
  spec.key.auto_rule = AutoRule::kDefault;
  return spec;
}

std::vector<ParameterSpec> with_start(std::vector<ParameterSpec> own, const std::string& name) {
  own.push_back(fixed(
      name,
      KeyKind::kInteger,
      "-1",
      "a checkpoint restores the position of the schedule; delete it"));
  return own;
}

TypeSpec deepspeed(const std::string& name, std::vector<ParameterSpec> own) {
  return {
      .name = name,
      .description = "DeepSpeed's",
      .parameters = with_start(std::move(own), "last_batch_iteration")};
}

TypeSpec torchs(const std::string& name, std::vector<ParameterSpec> own) {
  own = with_start(std::move(own), "last_epoch");
  own.push_back(without_effect("verbose", "torch has removed it"));
  return {.name = name, .description = "torch's", .parameters = std::move(own)};
}

ParameterSpec warmup_type() {
  return choice("warmup_type", {"log", "linear"});
}

void add_deepspeeds(std::vector<TypeSpec>& types) {
  const ParameterSpec min_lr = auto_allowed(numbers("warmup_min_lr", 0));
  const ParameterSpec warmup = count("warmup_num_steps", 1, 1000);
  const ParameterSpec total = required(count("total_num_steps", 1, 0));
  types.push_back(deepspeed(
      "WarmupLR",
      {min_lr, auto_allowed(optional(numbers("warmup_max_lr", 0))), warmup, warmup_type()}));
  types.push_back(deepspeed(
      "WarmupDecayLR",
      {total, min_lr, auto_allowed(numbers("warmup_max_lr", 0.001)), warmup, warmup_type()}));
  types.push_back(deepspeed(
      "WarmupCosineLR",
      {total,
       at_most(number("warmup_min_ratio", 0, 0.0), 1),
       warmup,
       at_most(number("cos_min_ratio", 0, 0.0001), 1),
       warmup_type()}));
  types.push_back(deepspeed(
      "OneCycle",
      {required(numbers("cycle_min_lr", 0)),
       required(numbers("cycle_max_lr", 0)),
       number("decay_lr_rate", 0, 0.0),
       count("cycle_first_step_size", 1, 2000),
       optional(count("cycle_second_step_size", 0, 0)),
       count("cycle_first_stair_count", 0, 0),
       optional(count("cycle_second_stair_count", 0, 0)),
       count("decay_step_size", 0, 0),
       flag("cycle_momentum", true),
       numbers("cycle_min_mom", 0.8),
       numbers("cycle_max_mom", 0.9),
       number("decay_mom_rate", 0, 0.0)}));
  types.push_back(deepspeed(
      "LRRangeTest",
      {numbers("lr_range_test_min_lr", 1e-3),
       count("lr_range_test_step_size", 1, 2000),
       number("lr_range_test_step_rate", 0, 1.0),
       flag("lr_range_test_staircase", false)}));
}

void add_torchs(std::vector<TypeSpec>& types) {
  types.push_back(torchs("StepLR", {required(count("step_size", 1, 0)), number("gamma", 0, 0.1)}));
  types.push_back(torchs(
      "MultiStepLR",
      {required(with_default("milestones", KeyKind::kIntegers, 0, std::nullopt)),
       number("gamma", 0, 0.1)}));
  types.push_back(torchs("ExponentialLR", {required(number("gamma", 0, 0.0))}));
  types.push_back(torchs("PolynomialLR", {count("total_iters", 1, 5), number("power", 0, 1.0)}));
  types.push_back(
      torchs("CosineAnnealingLR", {required(count("T_max", 1, 0)), number("eta_min", 0, 0.0)}));
  types.push_back(torchs(
      "CosineAnnealingWarmRestarts",
      {required(count("T_0", 1, 0)), count("T_mult", 1, 1), number("eta_min", 0, 0.0)}));
  types.push_back(
      torchs("ConstantLR", {at_most(number("factor", 0, 1.0 / 3), 1), count("total_iters", 1, 5)}));
  types.push_back(torchs(
      "LinearLR",
      {at_most(number("start_factor", kAboveZero, 1.0 / 3), 1),
       at_most(number("end_factor", 0, 1.0), 1),
       count("total_iters", 1, 5)}));
  types.push_back(torchs(
      "CyclicLR",
      {required(numbers("base_lr", 0)),
       required(numbers("max_lr", 0)),
       count("step_size_up", 1, 2000),
       optional(count("step_size_down", 0, 0)),
       choice("mode", {"triangular", "triangular2", "exp_range"}),
       number("gamma", 0, 1.0),
       flag("cycle_momentum", true),
       numbers("base_momentum", 0.8),
       numbers("max_momentum", 0.9),
       {.key = nullable(
            refused("scale_fn", "is a function, which a file cannot contain; write mode"))},
       {.key =
            ignored("scale_mode", KeyKind::kText, "it is for scale_fn; each mode has its own")}}));
  types.push_back(torchs(
      "OneCycleLR",
      {required(numbers("max_lr", 0)),
       required(count("total_steps", 1, 0)),
       at_most(number("pct_start", 0, 0.3), 1),
       choice("anneal_strategy", {"cos", "linear"}),
       flag("cycle_momentum", true),
       number("base_momentum", 0, 0.85),
       number("max_momentum", 0, 0.95),
       number("div_factor", kAboveZero, 25.0),
       number("final_div_factor", kAboveZero, 1e4),
       flag("three_phase", false),
       {.key = refused("epochs", "write total_steps, which is epochs * steps_per_epoch")},
       {.key =
            refused("steps_per_epoch", "write total_steps, which is epochs * steps_per_epoch")}}));
}

std::vector<TypeSpec> make_schedule_types() {
  std::vector<TypeSpec> types;
  add_deepspeeds(types);
  add_torchs(types);
  types.push_back(refused_type(
      "ReduceLROnPlateau",
      "needs a metric, which a file cannot contain; pass schedule::reduce_on_plateau to initialize "
      "as lr_scheduler, and the metric to step()"));
  for (const char* name : {"SequentialLR", "ChainedScheduler"}) {
    types.push_back(refused_type(
        name,
        "needs other schedules, which DeepSpeed's file cannot contain either; give the program "
        "schedule::custom instead"));
  }
  for (const char* name : {"LambdaLR", "MultiplicativeLR"}) {
    types.push_back(refused_type(
        name,
        "needs a function, which a file cannot contain; give the program schedule::custom "
        "instead"));
  }
  return types;
}

}  // namespace

const std::vector<TypeSpec>& schedule_types() {
  static const std::vector<TypeSpec> types = make_schedule_types();
  return types;
}

}  // namespace lockstep::ds_config
