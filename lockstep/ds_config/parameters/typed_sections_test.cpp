// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameters/typed_sections.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/ds_config/parameters/parameter_table.h"
#include "lockstep/ds_config/parameters/schedule_of.h"
#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// The schedule of a file that has to be right.
schedule::Schedule schedule(const std::string& type, const std::string& params) {
  const Reading reading = reading_with(scheduler(type, params));
  EXPECT_EQ(lines_of(reading.errors), "");
  return reading.config.scheduler->schedule.value();
}

TEST(OptimizerSection, NamesAreKnownInAnyCase) {
  for (const std::string name : {"adamw", "AdamW", "ADAMW"}) {
    EXPECT_EQ(reading_with(optimizer(name)).config.optimizer->name.value, "adamw");
  }
  EXPECT_EQ(reading_with(optimizer("sgd")).config.optimizer->name.value, "sgd");
  EXPECT_FALSE(reading_with("").config.optimizer.has_value());
}

TEST(OptimizerSection, AdamIsAdamWUnlessItsModeIsFalse) {
  const Reading reading = reading_with(optimizer("Adam"));
  EXPECT_EQ(reading.config.optimizer->name.value, "adamw");
  EXPECT_THAT(lines_of(reading.notes), HasSubstr("Adam means AdamW, as in DeepSpeed"));
  EXPECT_EQ(
      described(reading.config.optimizer->name.origin),
      "derived: Adam at ds.json:2:23 with adam_w_mode true, its default");
  EXPECT_EQ(
      reading_with(optimizer("Adam", R"("adam_w_mode": false)")).config.optimizer->name.value,
      "adam");
  EXPECT_THAT(
      errors_of(optimizer("AdamW", R"("adam_w_mode": false)")),
      HasSubstr("cannot be combined with adam_w_mode false"));
}

TEST(OptimizerSection, ParametersHaveDeepSpeedsDefaultsAndOrigins) {
  const DsConfig config =
      reading_with(optimizer("AdamW", R"("lr": 3e-4, "betas": [0.8, 0.99])")).config;
  const Parameters& parameters = config.optimizer->parameters;
  EXPECT_EQ(parameters.number("lr"), 3e-4);
  EXPECT_EQ(described(parameters.origin("lr")), "ds.json:2:49");
  EXPECT_THAT(parameters.numbers("betas"), ElementsAre(0.8, 0.99));
  EXPECT_EQ(parameters.number("eps"), 1e-8);
  EXPECT_EQ(parameters.number("weight_decay"), 0);
  EXPECT_EQ(described(parameters.origin("eps")), "default");
  const Parameters torchs =
      reading_with(optimizer("AdamW", R"("torch_adam": true)")).config.optimizer->parameters;
  EXPECT_EQ(torchs.number("weight_decay"), 0.01);
  EXPECT_EQ(described(torchs.origin("weight_decay")), "derived: torch_adam: torch's default");
}

TEST(OptimizerSection, TorchsOthersAreKnownWithTheirParameters) {
  const Parameters nadam = reading_with(optimizer("NAdam", R"("decoupled_weight_decay": true)"))
                               .config.optimizer->parameters;
  EXPECT_TRUE(nadam.flag("decoupled_weight_decay"));
  EXPECT_EQ(nadam.number("momentum_decay"), 4e-3);
  const Parameters eps =
      reading_with(optimizer("Adafactor", R"("eps": [null, 0.5])")).config.optimizer->parameters;
  EXPECT_TRUE(std::isnan(eps.numbers("eps").at(0)));
  EXPECT_EQ(eps.numbers("eps").at(1), 0.5);
}

TEST(OptimizerSection, AnUnknownParameterOfAnOptimizerIsAnError) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {optimizer("Lion", R"("eps": 1e-8)"), "Lion has no parameter 'eps'"},
      {optimizer("SGD", R"("momentum": "0.9")"),
       "invalid value for optimizer.params.momentum; got"},
      {optimizer("Adam", R"("lr": -1)"), "expected a number of at least 0\n"},
      {optimizer("Adam", R"("betas": [0.9])"), "expected a list of two numbers from 0 to 1\n"},
      {optimizer("Adam", R"("differentiable": true)"), "unless it is false, is refused"},
      {optimizer("Adafactor", R"("eps": [0.1, null])"), "the first of which may be null"},
      {optimizer("Rprop", R"("etas": [null, 1.2])"),
       "expected a list of two numbers of at least 0"},
      {optimizer("Adadelta", R"("rho": 1.5)"), "from 0 to 1"},
      {optimizer("NAdam", R"("capturable": true)"), "cannot be captured"},
      {optimizer("LBFGS"), "by a closure"},
      {optimizer("SparseAdam"), "averaged dense"},
      {optimizer("Adam", R"("max_grad_norm": 1)"),
       "use gradient_clipping at the top level instead"},
      {optimizer("SGD", R"("nesterov": true)"), "nesterov needs a momentum"},
      {R"("optimizer": {"params": {"lr": 1}})", "[ds.json:2:1] optimizer has no type"},
      {R"("optimizer": {"type": 3})", "invalid value for optimizer.type; got 3"},
      {optimizer("Muon", R"("ns_method": "svd")"), "expected one of \"gram\", \"standard\""},
      {optimizer("Muon", R"("per_head_muon": true)"), "attention heads are not distinguished"},
      {optimizer("MuAdam"), "optimizer.params.lr is missing and has no default"},
      {optimizer("MuSGD", R"("lr": 0.1, "nesterov": true)"), "nesterov needs a momentum"},
      {optimizer("OneBitAdam"), "was removed from DeepSpeed 0.19"},
      {optimizer("AdamX"), "expected one of Adam, AdamW, Lamb, Lion"}};
  for (const auto& [keys, what] : cases) {
    EXPECT_THAT(errors_of(keys), HasSubstr(what)) << keys;
  }
}

TEST(OptimizerSection, ThoseThatNeedFullParametersKeepTheirStateOnTheDevice) {
  for (const std::string name : {"Lamb", "Adafactor", "Muon"}) {
    EXPECT_EQ(errors_of(optimizer(name) + R"(, "zero_optimization": {"stage": 3})"), "") << name;
    EXPECT_THAT(
        errors_of(
            optimizer(name) +
            R"(, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})"),
        HasSubstr("needs full parameters, which are unsharded on the device"))
        << name;
  }
}

TEST(SchedulerSection, DeepSpeedsSchedulesTakeTheirParameters) {
  const schedule::Schedule warmup =
      schedule("WarmupLR", R"("warmup_min_lr": 0, "warmup_max_lr": 0.1, "warmup_num_steps": 10,
        "warmup_type": "linear")");
  EXPECT_EQ(warmup.lr(0, 1), 0);
  EXPECT_DOUBLE_EQ(warmup.lr(6, 1), 0.05);
  EXPECT_EQ(warmup.lr(100, 1), 0.1);
  EXPECT_EQ(
      schedule("WarmupLR", R"("warmup_num_steps": 10)").lr(100, 0.7), 0.7);  // The optimizer's.
  // They stay at their last rate.
  EXPECT_EQ(schedule("WarmupDecayLR", R"("total_num_steps": 5000)").lr(5'001, 1), 0);
  EXPECT_EQ(schedule("WarmupDecayLR", R"("total_num_steps": 5000)").lr(1'000'000, 1), 0);
  EXPECT_NEAR(
      schedule("WarmupCosineLR", R"("total_num_steps": 1e4)").lr(1'000'000, 1), 0.0001, 1e-12);
  const schedule::Schedule cycle = schedule(
      "OneCycle", R"("cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_first_step_size": 10)");
  EXPECT_DOUBLE_EQ(cycle.lr(10, 5), 1);
  EXPECT_DOUBLE_EQ(cycle.momentum(10).value(), 0.8);
  EXPECT_EQ(schedule("LRRangeTest", R"("lr_range_test_step_size": 10)").lr(10, 5), 0.002);
}

TEST(SchedulerSection, TorchsSchedulesAreKnownByTheirNames) {
  EXPECT_DOUBLE_EQ(schedule("StepLR", R"("step_size": 3, "gamma": 0.5)").lr(3, 1), 0.5);
  EXPECT_DOUBLE_EQ(schedule("MultiStepLR", R"("milestones": [2, 4])").lr(4, 1), 0.01);
  EXPECT_DOUBLE_EQ(schedule("ExponentialLR", R"("gamma": 0.5)").lr(2, 1), 0.25);
  EXPECT_EQ(schedule("PolynomialLR", "").lr(100, 1), 0);
  EXPECT_NEAR(schedule("CosineAnnealingLR", R"("T_max": 10)").lr(10, 1), 0, 1e-12);
  EXPECT_EQ(schedule("CosineAnnealingWarmRestarts", R"("T_0": 4)").lr(4, 1), 1);
  EXPECT_DOUBLE_EQ(schedule("ConstantLR", R"("factor": 0.5)").lr(4, 1), 0.5);
  EXPECT_DOUBLE_EQ(schedule("ConstantLR", R"("factor": 0.5)").lr(5, 1), 1);
  EXPECT_DOUBLE_EQ(schedule("LinearLR", R"("start_factor": 0.5, "total_iters": 2)").lr(1, 1), 0.75);
  const schedule::Schedule cyclic = schedule(
      "CyclicLR",
      R"("base_lr": 1, "max_lr": 3, "step_size_up": 2, "mode": "triangular2", "scale_fn": null)");
  EXPECT_DOUBLE_EQ(cyclic.lr(1, 9), 2);
  EXPECT_DOUBLE_EQ(cyclic.lr(6, 9), 2);
  EXPECT_DOUBLE_EQ(cyclic.momentum(2).value(), 0.8);
  EXPECT_NEAR(schedule("OneCycleLR", R"("max_lr": 1, "total_steps": 10)").lr(0, 5), 0.04, 1e-15);
}

TEST(SchedulerSection, AnUnknownParameterOfAScheduleIsAnError) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {scheduler("WarmupDecayLR"), "scheduler.params.total_num_steps is missing"},
      {R"("scheduler": {"type": "StepLR"})", "scheduler.params.step_size is missing"},
      {scheduler("warmuplr"), "did you mean 'WarmupLR'?"},
      {scheduler("WarmupLR", R"("warmup_num_steps": 0)"), "of at least 1\n"},
      {scheduler("WarmupLR", R"("warmup_num_steps": 1.5)"), "expected a whole number"},
      {scheduler("WarmupLR", R"("warmup_type": "lineal")"), "did you mean 'linear'?"},
      {scheduler("WarmupLR", R"("warmup_min_lr": [0, 1], "warmup_max_lr": [0, 1, 2])"),
       "scheduler.params: [deepspeed_warmup] two lists have different numbers"},
      {scheduler("StepLR", R"("step_size": 1, "last_epoch": 3)"), "unless it is -1, is refused"},
      {scheduler("OneCycleLR", R"("max_lr": 1, "epochs": 3)"), "write total_steps"},
      {scheduler("ReduceLROnPlateau"), "needs a metric"},
      {scheduler("CyclicLR", R"("base_lr": 1, "max_lr": 3, "scale_fn": "f")"), "write mode"},
      {scheduler("CyclicLR", R"("max_lr": 3)"), "scheduler.params.base_lr is missing"},
      {scheduler("LinearLR", R"("start_factor": 0)"),
       "invalid value for scheduler.params.start_factor;"},
      {scheduler("SequentialLR"), "needs other schedules"},
      {scheduler("LambdaLR"), "needs a function, which a file cannot contain"},
      {scheduler("MultiStepLR", R"("milestones": [1.5])"), "a list of whole numbers"}};
  for (const auto& [keys, what] : cases) {
    EXPECT_THAT(errors_of(keys), HasSubstr(what)) << keys;
  }
  EXPECT_EQ(errors_of(scheduler("StepLR", R"("step_size": 1, "last_epoch": -1)")), "");
}

TEST(SchedulerSection, AutoForTheHighestRateIsTheOptimizers) {
  const std::string decay =
      scheduler("WarmupDecayLR", R"("total_num_steps": 2000, "warmup_max_lr": "auto",
        "warmup_min_lr": "auto")");
  const DsConfig config = reading_with(optimizer("Adam", R"("lr": 0.5)") + ", " + decay).config;
  const Parameters& parameters = config.scheduler->parameters;
  EXPECT_THAT(parameters.numbers("warmup_max_lr"), ElementsAre(0.5));
  EXPECT_THAT(
      described(parameters.origin("warmup_max_lr")),
      StartsWith("derived: optimizer.params.lr, \"auto\" at ds.json:2:"));
  EXPECT_THAT(parameters.numbers("warmup_min_lr"), ElementsAre(0));
  EXPECT_THAT(errors_of(decay), HasSubstr("but the file has no optimizer; write the rate"));
}

/// A table's row that nobody can make would be found by its first user.
TEST(SchedulerSection, EveryTypeOfTheTableCanBeMade) {
  for (const TypeSpec& type : schedule_types()) {
    if (type.refused) {
      continue;
    }
    SchedulerSection section{.name = {type.name}, .parameters = {}};
    for (const ParameterSpec& spec : type.parameters) {
      if (spec.required) {
        const bool whole = spec.key.kind == KeyKind::kInteger;
        const bool number = spec.key.kind == KeyKind::kNumber;
        section.parameters.add(
            {spec.key.path,
             {whole    ? ParameterValue(int64_t{2000})
              : number ? ParameterValue(0.5)
                       : ParameterValue(std::vector<double>{1})}});
      } else if (spec.default_value) {
        section.parameters.add({spec.key.path, {*spec.default_value}});
      }
    }
    EXPECT_GE(schedule_of(section).lr(3, 0.1), 0) << type.name;
  }
}

}  // namespace
}  // namespace lockstep::ds_config
