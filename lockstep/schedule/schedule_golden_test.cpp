// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/schedule/decay_schedules.h"
#include "lockstep/schedule/deepspeed_schedules.h"
#include "lockstep/schedule/ramp_schedules.h"
#include "lockstep/schedule/schedule.h"
#include "lockstep/schedule/warmup_schedules.h"

namespace lockstep::schedule {
namespace {

using Schedules = std::map<std::string, Schedule>;

/// What tests/golden/make_schedules.py makes, by the same names.
Schedules torchs() {
  return {
      {"step_decay", step_decay({.step_size = 7, .gamma = 0.3})},
      {"step_decay/2", step_decay({.step_size = 2, .gamma = 0.5})},
      {"multi_step_decay", multi_step_decay({.milestones = {15, 4, 9, 9}, .gamma = 0.2})},
      {"exponential_decay", exponential_decay({.gamma = 0.93})},
      {"cosine_annealing", cosine_annealing({.half_period_steps = 12, .min_lr = 0.01})},
      {"cosine_warm_restarts", cosine_warm_restarts({.first_cycle_steps = 8, .min_lr = 0.02})},
      {"cosine_warm_restarts/2", cosine_warm_restarts({.first_cycle_steps = 4, .cycle_factor = 2})},
      {"cosine_warm_restarts/3", cosine_warm_restarts({.first_cycle_steps = 1, .cycle_factor = 3})},
      {"polynomial_decay", polynomial_decay({.total_steps = 20, .power = 2.5})},
      {"custom", custom([](int64_t step) { return 1 / (1 + static_cast<double>(step)); })},
      {"one_cycle", one_cycle({.max_lr = {0.5}, .total_steps = 25})},
      {"one_cycle/linear",
       one_cycle(
           {.max_lr = {0.5},
            .total_steps = 25,
            .pct_start = 0.5,
            .anneal_strategy = Anneal::kLinear,
            .base_momentum = 0.7,
            .max_momentum = 0.97,
            .div_factor = 10,
            .final_div_factor = 100})},
      {"one_cycle/three_phase",
       one_cycle({.max_lr = {0.5}, .total_steps = 30, .pct_start = 0.4, .three_phase = true})},
      {"one_cycle/no_momentum",
       one_cycle({.max_lr = {0.5}, .total_steps = 11, .pct_start = 0, .cycle_momentum = false})},
      {"one_cycle/groups", one_cycle({.max_lr = {0.5, 0.1}, .total_steps = 11})},
      {"constant_factor", constant_factor({})},
      {"constant_factor/2", constant_factor({.factor = 0.2, .num_steps = 9})},
      {"linear_factor", linear_factor({})},
      {"linear_factor/falls",
       linear_factor({.start_factor = 0.9, .end_factor = 0.1, .num_steps = 12})},
      {"cyclic", cyclic({.base_lr = {0.05}, .max_lr = {0.5}, .step_size_up = 6})},
      {"cyclic/triangular2",
       cyclic(
           {.base_lr = {0.05},
            .max_lr = {0.5},
            .step_size_up = 4,
            .step_size_down = 7,
            .mode = CyclicMode::kTriangular2,
            .base_momentum = {0.7},
            .max_momentum = {0.95}})},
      {"cyclic/exp_range",
       cyclic(
           {.base_lr = {0.05},
            .max_lr = {0.5},
            .step_size_up = 3,
            .mode = CyclicMode::kExpRange,
            .gamma = 0.97})},
      {"cyclic/groups",
       cyclic(
           {.base_lr = {0.05, 0.01},
            .max_lr = {0.5, 0.2},
            .step_size_up = 5,
            .step_size_down = 0,
            .cycle_momentum = false})}};
}

Schedules transformers() {
  Schedules schedules = {
      {"constant", constant()},
      {"warmup_constant", warmup_constant({.warmup_steps = 6})},
      {"warmup_linear", warmup_linear({.warmup_steps = 7, .total_steps = 28})},
      {"warmup_linear/none", warmup_linear({.total_steps = 28})},
      {"warmup_cosine", warmup_cosine({.warmup_steps = 5, .total_steps = 30})},
      {"warmup_cosine/2",
       warmup_cosine({.warmup_steps = 5, .total_steps = 30, .num_cycles = 2.25})},
      {"warmup_cosine/min",
       warmup_cosine({.warmup_steps = 5, .total_steps = 30, .min_lr_ratio = 0.1})},
      {"warmup_cosine_restarts",
       warmup_cosine_restarts({.warmup_steps = 5, .total_steps = 29, .num_cycles = 3})},
      {"warmup_polynomial", warmup_polynomial({.warmup_steps = 4, .total_steps = 27})},
      {"warmup_polynomial/2",
       warmup_polynomial({.warmup_steps = 4, .total_steps = 27, .lr_end = 0.05, .power = 2})},
      {"warmup_inverse_sqrt", warmup_inverse_sqrt({.warmup_steps = 6})},
      {"warmup_inverse_sqrt/none", warmup_inverse_sqrt({})},
      {"warmup_inverse_sqrt/timescale", warmup_inverse_sqrt({.warmup_steps = 6, .timescale = 50})},
      {"warmup_stable_decay",
       warmup_stable_decay({.warmup_steps = 6, .decay_steps = 12, .total_steps = 30})}};
  const std::map<std::string, Ramp> ramps = {
      {"linear", Ramp::kLinear}, {"cosine", Ramp::kCosine}, {"1-sqrt", Ramp::kOneMinusSqrt}};
  for (const auto& [name, ramp] : ramps) {
    schedules.emplace(
        "warmup_stable_decay/" + name,
        warmup_stable_decay(
            {.warmup_steps = 6,
             .decay_steps = 12,
             .stable_steps = 10,
             .warmup_type = ramp,
             .decay_type = ramp,
             .min_lr_ratio = 0.1}));
  }
  return schedules;
}

Schedules deepspeeds() {
  constexpr auto kLinear = DeepSpeedWarmup::kLinear;
  return {
      {"deepspeed_warmup",
       deepspeed_warmup({.warmup_min_lr = {0.01}, .warmup_max_lr = {0.2}, .warmup_num_steps = 9})},
      {"deepspeed_warmup/linear",
       deepspeed_warmup({.warmup_num_steps = 9, .warmup_type = kLinear})},
      {"deepspeed_warmup/1", deepspeed_warmup({.warmup_num_steps = 1})},
      {"deepspeed_warmup/groups",
       deepspeed_warmup(
           {.warmup_min_lr = {0, 0.1}, .warmup_max_lr = {0.2, 0.3}, .warmup_num_steps = 5})},
      {"deepspeed_warmup_decay",
       deepspeed_warmup_decay(
           {.total_num_steps = 25,
            .warmup_min_lr = {0.01},
            .warmup_max_lr = {0.2},
            .warmup_num_steps = 9})},
      {"deepspeed_warmup_decay/linear",
       deepspeed_warmup_decay(
           {.total_num_steps = 25,
            .warmup_min_lr = {0.01},
            .warmup_max_lr = {0.2},
            .warmup_num_steps = 9,
            .warmup_type = kLinear})},
      {"deepspeed_warmup_decay/default", deepspeed_warmup_decay({.total_num_steps = 20})},
      {"deepspeed_warmup_cosine",
       deepspeed_warmup_cosine(
           {.total_num_steps = 25, .warmup_min_ratio = 0.05, .warmup_num_steps = 9})},
      {"deepspeed_warmup_cosine/linear",
       deepspeed_warmup_cosine(
           {.total_num_steps = 25,
            .warmup_min_ratio = 0.05,
            .warmup_num_steps = 9,
            .cos_min_ratio = 0.02,
            .warmup_type = kLinear})},
      {"deepspeed_one_cycle",
       deepspeed_one_cycle(
           {.cycle_min_lr = {0.01},
            .cycle_max_lr = {0.2},
            .decay_lr_rate = 0.3,
            .cycle_first_step_size = 7,
            .cycle_second_step_size = 11,
            .decay_step_size = 4,
            .decay_mom_rate = 0.01})},
      {"deepspeed_one_cycle/stairs",
       deepspeed_one_cycle(
           {.cycle_min_lr = {0.01},
            .cycle_max_lr = {0.2},
            .cycle_first_step_size = 8,
            .cycle_second_step_size = 9,
            .cycle_first_stair_count = 4,
            .cycle_second_stair_count = 3,
            .cycle_min_mom = {0.85},
            .cycle_max_mom = {0.99}})},
      {"deepspeed_one_cycle/same_stairs",
       deepspeed_one_cycle(
           {.cycle_min_lr = {0.01},
            .cycle_max_lr = {0.2},
            .cycle_first_step_size = 6,
            .cycle_first_stair_count = 3,
            .decay_step_size = 2,
            .cycle_momentum = false})},
      {"deepspeed_lr_range_test",
       deepspeed_lr_range_test(
           {.lr_range_test_min_lr = {0.01},
            .lr_range_test_step_size = 5,
            .lr_range_test_step_rate = 1.5})},
      {"deepspeed_lr_range_test/stairs",
       deepspeed_lr_range_test(
           {.lr_range_test_min_lr = {0.01},
            .lr_range_test_step_size = 5,
            .lr_range_test_step_rate = 1.5,
            .lr_range_test_staircase = true})}};
}

const nlohmann::json& golden() {
  static const nlohmann::json parsed = [] {
    std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/schedules.json");
    return nlohmann::json::parse(file);
  }();
  return parsed;
}

/// torch multiplies step by step where we have closed forms, so the last bits differ; relative to
/// the base rate, since some cosines end in a zero that torch misses by a rounding.
void expect_close(double ours, double theirs, const std::string& where) {
  constexpr double kTolerance = 1e-12;
  EXPECT_NEAR(ours, theirs, kTolerance * std::max(std::abs(theirs), 0.3)) << where;
}

void expect_equal_to_golden(const Schedules& schedules) {
  // The rates at construction that the script gives its optimizers' groups.
  const std::map<std::string, std::vector<double>> base_lrs = {
      {"one_cycle/groups", {0.3, 0.2}},
      {"cyclic/groups", {0.3, 0.2}},
      {"deepspeed_warmup/groups", {0.3, 0.4}}};
  for (const auto& [name, ended] : schedules) {
    const nlohmann::json& entry = golden().at("schedules").at(name);
    const auto bases = base_lrs.contains(name) ? base_lrs.at(name)
                                               : std::vector{golden().at("base_lr").get<double>()};
    const Schedule schedule = ended.without_end();
    for (size_t step = 0; step < entry.at("lr").size(); ++step) {
      const auto at = static_cast<int64_t>(step);
      const std::string where = name + " at step " + std::to_string(step);
      const nlohmann::json& theirs = entry.at("lr")[step];
      for (size_t group = 0; group < bases.size(); ++group) {
        const double rate = theirs.is_array() ? theirs[group].get<double>() : theirs.get<double>();
        expect_close(schedule.lr(at, bases[group], group), rate, where);
      }
      if (entry.contains("momentum")) {
        ASSERT_TRUE(schedule.momentum(at)) << where;
        expect_close(*schedule.momentum(at), entry.at("momentum")[step], where);
      } else if (bases.size() == 1) {
        EXPECT_FALSE(schedule.momentum(at)) << where;
      }
    }
  }
}

TEST(ScheduleGolden, TorchsAtEveryStep) {
  expect_equal_to_golden(torchs());
}

TEST(ScheduleGolden, TransformersAtEveryStep) {
  expect_equal_to_golden(transformers());
}

TEST(ScheduleGolden, DeepspeedsAtEveryStep) {
  expect_equal_to_golden(deepspeeds());
}

TEST(ScheduleGolden, LeavesNoCaseOfTheFileOut) {
  std::set<std::string> ours;
  for (const Schedules& family : {torchs(), transformers(), deepspeeds()}) {
    for (const auto& [name, schedule] : family) {
      ours.insert(name);
    }
  }
  std::set<std::string> theirs;
  for (const auto& item : golden().at("schedules").items()) {
    theirs.insert(item.key());
  }
  EXPECT_EQ(ours, theirs);
}

}  // namespace
}  // namespace lockstep::schedule
