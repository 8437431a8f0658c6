// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/schedule.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/schedule/decay_schedules.h"
#include "lockstep/schedule/deepspeed_schedules.h"
#include "lockstep/schedule/ramp_schedules.h"
#include "lockstep/schedule/warmup_schedules.h"

namespace lockstep::schedule {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Schedule, AllowsAsManyStepsAsUpdatesAndNotOneMore) {
  const Schedule schedule = warmup_linear({.warmup_steps = 2, .total_steps = 10});
  EXPECT_EQ(schedule.total_steps(), 10);
  EXPECT_EQ(schedule.lr(10, 0.5), 0);
  EXPECT_THAT(
      error_of([&] { (void)schedule.lr(11, 0.5); }),
      AllOf(HasSubstr("warmup_linear"), HasSubstr("step 11"), HasSubstr("total_steps = 10")));
  EXPECT_THAT(error_of([&] { (void)schedule.momentum(11); }), HasSubstr("step 11"));
  EXPECT_THAT(error_of([&] { (void)schedule.lr(-1, 0.5); }), HasSubstr("-1"));
}

TEST(Schedule, WithoutEndFollowsItsFormula) {
  const Schedule schedule = warmup_linear({.total_steps = 4}).without_end();
  EXPECT_FALSE(schedule.total_steps());
  EXPECT_EQ(schedule.lr(1000, 0.5), 0);
  EXPECT_EQ(schedule.name(), "warmup_linear");
}

TEST(Schedule, RefusesAGroupItHasNoValuesFor) {
  const Schedule one = one_cycle({.max_lr = {0.1}, .total_steps = 5});
  EXPECT_EQ(one.lr(0, 9, 7), one.lr(0, 9, 0));
  EXPECT_FALSE(one.groups());
  const Schedule two = one_cycle({.max_lr = {0.1, 0.2}, .total_steps = 5});
  EXPECT_EQ(two.groups(), 2U);
  EXPECT_EQ(two.lr(1, 9, 1), 2 * two.lr(1, 9, 0));
  EXPECT_THAT(error_of([&] { (void)two.lr(0, 9, 2); }), HasSubstr("parameter group 2"));
}

TEST(Schedule, CustomMultipliesTheBaseRateAndMayEnd) {
  const Schedule schedule = custom([](int64_t step) { return step < 2 ? 1.0 : 0.5; }, 3);
  EXPECT_EQ(schedule.lr(1, 0.25), 0.25);
  EXPECT_EQ(schedule.lr(3, 0.25), 0.125);
  EXPECT_THROW((void)schedule.lr(4, 0.25), ConfigError);
  EXPECT_THROW(custom({}), ConfigError);
  EXPECT_THROW(custom([](int64_t) { return 1.0; }, -1), ConfigError);
}

TEST(Schedule, OneCycleEndsAtItsLastRateWhereTorchExtrapolates) {
  const Schedule schedule = one_cycle(
      {.max_lr = {1}, .total_steps = 10, .anneal_strategy = Anneal::kLinear, .div_factor = 10});
  EXPECT_NEAR(schedule.lr(9, 1), 1e-5, 1e-15);
  EXPECT_EQ(schedule.lr(10, 1), schedule.lr(9, 1));
  EXPECT_THROW((void)schedule.lr(11, 1), ConfigError);
  // A rise that ends at step 0, which is a division by zero in torch.
  EXPECT_EQ(one_cycle({.max_lr = {1}, .total_steps = 10, .pct_start = 0.1}).lr(0, 1), 1);
}

TEST(Schedule, PolynomialNeedsARateAboveItsEnd) {
  const Schedule schedule = warmup_polynomial({.total_steps = 5, .lr_end = 0.1});
  EXPECT_EQ(schedule.lr(5, 0.2), 0.1);
  EXPECT_THAT(error_of([&] { (void)schedule.lr(0, 0.1); }), HasSubstr("lr_end"));
}

TEST(Schedule, DeepspeedsOneCycleSetsTheSecondBeta) {
  EXPECT_EQ(deepspeed_one_cycle({.cycle_min_lr = {0}, .cycle_max_lr = {1}}).beta2(), 0.99);
  EXPECT_FALSE(one_cycle({.max_lr = {1}, .total_steps = 2}).beta2());
}

TEST(Schedule, DeepspeedsLongWarmupIsAWarning) {
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  (void)deepspeed_warmup_cosine({.total_num_steps = 10});
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("1000"), HasSubstr("total_num_steps = 10")));
}

struct Refused {
  const char* word;
  std::function<void()> make;
};

TEST(Schedule, RefusesOptionsWithoutSenseAtConstruction) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Refused> all = {
      {"total_steps", [] { warmup_linear({.warmup_steps = 1}); }},
      {"warmup_steps", [] { warmup_linear({.warmup_steps = -1, .total_steps = 5}); }},
      {"longer", [] { warmup_cosine({.warmup_steps = 6, .total_steps = 5}); }},
      {"min_lr_ratio", [] { warmup_cosine({.total_steps = 5, .min_lr_ratio = 1.5}); }},
      {"num_cycles", [=] { warmup_cosine({.total_steps = 5, .num_cycles = nan}); }},
      {"num_cycles", [] { warmup_cosine_restarts({.total_steps = 5, .num_cycles = 0}); }},
      {"power", [] { warmup_polynomial({.total_steps = 5, .power = -1}); }},
      {"lr_end", [] { warmup_polynomial({.total_steps = 5, .lr_end = -1}); }},
      {"timescale", [] { warmup_inverse_sqrt({.timescale = 0}); }},
      {"neither", [] { warmup_stable_decay({.decay_steps = 5}); }},
      {"total_steps", [] { warmup_stable_decay({.decay_steps = 5, .total_steps = 4}); }},
      {"total_steps is not warmup_steps + stable_steps + decay_steps",
       [] { warmup_stable_decay({.decay_steps = 5, .total_steps = 9, .stable_steps = 5}); }},
      {"total_steps", [] { warmup_stable_decay({.stable_steps = 0}); }},
      {"step_size", [] { step_decay({}); }},
      {"milestone",
       [] {
         multi_step_decay({.milestones = {3, -1}});
       }},
      {"gamma", [] { exponential_decay({}); }},
      {"total_steps", [] { polynomial_decay({}); }},
      {"half_period_steps", [] { cosine_annealing({}); }},
      {"cycle_factor", [] { cosine_warm_restarts({.first_cycle_steps = 2, .cycle_factor = 0}); }},
      {"max_lr", [] { one_cycle({.total_steps = 5}); }},
      {"max_lr", [] { one_cycle({.max_lr = {-1}, .total_steps = 5}); }},
      {"pct_start", [] { one_cycle({.max_lr = {1}, .total_steps = 5, .pct_start = 1.1}); }},
      {"at most 0.5",
       [] { one_cycle({.max_lr = {1}, .total_steps = 5, .pct_start = 0.6, .three_phase = true}); }},
      {"final_div_factor",
       [] { one_cycle({.max_lr = {1}, .total_steps = 5, .final_div_factor = 0}); }},
      {"factor", [] { constant_factor({.factor = 1.5}); }},
      {"num_steps", [] { constant_factor({.num_steps = 0}); }},
      {"start_factor must be above 0", [] { linear_factor({.start_factor = 0}); }},
      {"end_factor", [] { linear_factor({.end_factor = -0.1}); }},
      {"base_lr", [] { cyclic({.max_lr = {1}}); }},
      {"step_size_up", [] { cyclic({.base_lr = {0}, .max_lr = {1}, .step_size_up = 0}); }},
      {"step_size_down", [] { cyclic({.base_lr = {0}, .max_lr = {1}, .step_size_down = -1}); }},
      {"a momentum", [] { cyclic({.base_lr = {0}, .max_lr = {1}, .max_momentum = {1.5}}); }},
      {"two lists have different numbers of parameter groups",
       [] {
         cyclic({.base_lr = {0, 0}, .max_lr = {1, 1, 1}});
       }},
      {"warmup_num_steps", [] { deepspeed_warmup({.warmup_num_steps = 0}); }},
      {"warmup_max_lr",
       [] {
         deepspeed_warmup({.warmup_min_lr = {0, 0}, .warmup_max_lr = {1, 1, 1}});
       }},
      {"total_num_steps", [] { deepspeed_warmup_decay({}); }},
      {"cycle_min_lr", [] { deepspeed_one_cycle({.cycle_max_lr = {1}}); }},
      {"cycle_first_step_size",
       [] {
         deepspeed_one_cycle(
             {.cycle_min_lr = {0}, .cycle_max_lr = {1}, .cycle_first_step_size = 0});
       }},
      {"lr_range_test_step_size", [] { deepspeed_lr_range_test({.lr_range_test_step_size = 0}); }}};
  for (const Refused& refused : all) {
    EXPECT_THAT(error_of(refused.make), HasSubstr(refused.word));
  }
}

TEST(Describe, TellsTheStartTheEndOfTheWarmUpAndTheEnd) {
  EXPECT_EQ(
      describe(warmup_cosine({.warmup_steps = 100, .total_steps = 5000}), 3e-4, 5000),
      "warmup_cosine: learning rate 0 at step 0, 0.0003 at step 100 (warm-up ends), 0 at step 5000 "
      "(end)");
}

TEST(Describe, TellsThePeakAndTheMomentum) {
  EXPECT_EQ(
      describe(one_cycle({.max_lr = {1}, .total_steps = 11, .pct_start = 0.5455}), 9, 11),
      "one_cycle: learning rate 0.04 (momentum 0.95) at step 0, 1 (momentum 0.85) at step 5 "
      "(highest), 4e-06 (momentum 0.95) at step 11 (end)");
}

TEST(Describe, SaysWhenRunAndScheduleDifferInLength) {
  const Schedule schedule = warmup_linear({.total_steps = 40});
  EXPECT_THAT(describe(schedule, 1, 50), HasSubstr("step 41 is an error"));
  EXPECT_THAT(
      describe(schedule, 1, 30),
      AllOf(HasSubstr("0.25 at step 30 (last)"), HasSubstr("before the end at step 40")));
  EXPECT_EQ(describe(constant(), 0.5, 0), "constant: learning rate 0.5 at step 0 (last)");
  EXPECT_EQ(describe(constant(), 0.5, -5), "constant: learning rate 0.5 at step 0 (last)");
  EXPECT_THAT(describe(schedule, 1, -5), HasSubstr("1 at step 0 (last); the run stops before"));
}

TEST(Describe, SaysWhichGroupItIsOf) {
  const Schedule two = one_cycle({.max_lr = {0.1, 0.2}, .total_steps = 5});
  EXPECT_THAT(describe(two, 9, 5), HasSubstr("one_cycle: learning rate (of group 0 of 2) 0.004"));
}

}  // namespace
}  // namespace lockstep::schedule
