// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/schedule/decay_schedules.h"
#include "lockstep/schedule/warmup_schedules.h"

namespace lockstep {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::nn::Linear;

at::Tensor output_at_one(Linear& net) {
  return net->forward(at::ones({1, 1})).sum();
}

TEST(Scheduler, SetsStep0sRateWhenPreparedAndTheNextAfterEachUpdate) {
  Accelerator accelerator({.gradient_accumulation_steps = 2}, WorldSpec{}, Group());
  Linear net(1, 1);
  auto [model, optimizer, scheduler] = accelerator.prepare(
      net, optim::SGD(net->parameters(), {.lr = 1.0}), schedule::warmup_linear({.total_steps = 4}));
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(1.0));
  std::vector<double> rates;
  for (int step = 0; step < 8; ++step) {
    auto micro_step = accelerator.accumulate(model);
    accelerator.backward(output_at_one(model));
    optimizer.step();
    scheduler.step();
    rates.push_back(scheduler.get_last_lr()[0]);
  }
  EXPECT_THAT(rates, ElementsAre(1, .75, .75, .5, .5, .25, .25, 0));
  EXPECT_THROW(scheduler.step(), ConfigError) << "past its end";
  EXPECT_EQ(scheduler.steps(), 4);
}

TEST(Scheduler, CountsEveryProcessTheWayAccelerateDoesOnRequest) {
  const AcceleratorOptions compatible{.scheduler_steps = SchedulerSteps::kAccelerate};
  AcceleratorOptions split = compatible;
  split.split_batches = true;
  for (const auto& [options, expected] : {std::pair{compatible, 3}, {split, 1}}) {
    accelerated_ranks(3, options, [expected = expected](Accelerator& accelerator) {
      Linear net(1, 1);
      auto [model, optimizer, scheduler] = accelerator.prepare(
          net,
          optim::SGD(net->parameters(), {.lr = 1.0}),
          schedule::exponential_decay({.gamma = 0.5}));
      accelerator.backward(output_at_one(model));
      optimizer.step();
      scheduler.step();
      EXPECT_EQ(scheduler.steps(), expected);
    });
  }
}

TEST(Scheduler, OneCycleStopsWhereAccelerateStopsIt) {
  // Accelerate counts micro-steps without an update as well, unless adjust_scheduler is off.
  for (const bool adjust : {true, false}) {
    Accelerator accelerator(
        {.gradient_accumulation_plugin =
             GradientAccumulationPlugin{.num_steps = 2, .adjust_scheduler = adjust},
         .scheduler_steps = SchedulerSteps::kAccelerate},
        WorldSpec{},
        Group());
    Linear net(1, 1);
    auto [model, optimizer, scheduler] = accelerator.prepare(
        net,
        optim::SGD(net->parameters(), {.lr = 1.0, .momentum = 0.9}),
        schedule::one_cycle({.max_lr = {1.0}, .total_steps = 6}));
    for (int step = 0; step < 20; ++step) {
      auto micro_step = accelerator.accumulate(model);
      accelerator.backward(output_at_one(model));
      optimizer.step();
      scheduler.step();
    }
    EXPECT_EQ(scheduler.steps(), adjust ? 3 : 6);
  }
}

TEST(Scheduler, StepsIndependentlyIfItIsNotBoundToTheOptimizer) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = 4, .step_scheduler_with_optimizer = false},
      WorldSpec{},
      Group());
  Linear net(1, 1);
  auto [model, optimizer, scheduler] = accelerator.prepare(
      net, optim::SGD(net->parameters(), {.lr = 1.0}), schedule::exponential_decay({.gamma = 0.5}));
  auto micro_step = accelerator.accumulate(model);
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5));
}

TEST(Scheduler, BelongsToTheOptimizersOfItsOwnPrepare) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear a(1, 1), b(1, 1);
  auto [first, first_schedule] = accelerator.prepare(
      optim::SGD(a->parameters(), {.lr = 1.0}), schedule::exponential_decay({.gamma = 0.5}));
  auto [second_schedule, second] = accelerator.prepare(
      schedule::exponential_decay({.gamma = 0.1}), optim::SGD(b->parameters(), {.lr = 2.0}));
  first_schedule.step();
  second_schedule.step();
  EXPECT_THAT(first.learning_rates(), ElementsAre(0.5));
  EXPECT_THAT(second.learning_rates(), ElementsAre(DoubleNear(0.2, 1e-12)));
  EXPECT_THROW(Accelerator({}, WorldSpec{}, Group()).prepare(schedule::constant()), ConfigError);
}

TEST(Scheduler, OneCycleMovesMomentumOfOursAndOfTorchs) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear net(1, 1);
  optim::AdamW ours(net->parameters(), {});
  torch::optim::SGD torchs(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  auto [optimizer, other, scheduler] =
      accelerator.prepare(ours, torchs, schedule::one_cycle({.max_lr = {1.0}, .total_steps = 10}));
  EXPECT_EQ(optimizer_settings(ours)["param_groups"][0]["betas"][0], 0.95);
  EXPECT_EQ(
      static_cast<torch::optim::SGDOptions&>(torchs.param_groups()[0].options()).momentum(), 0.95);
}

TEST(Scheduler, ReduceOnPlateauFollowsAMetric) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear net(1, 1);
  auto [model, optimizer, scheduler] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = 1.0}),
      schedule::reduce_on_plateau({.factor = 0.5, .patience = 1}));
  EXPECT_THROW(scheduler.step(), ConfigError);
  for (const double loss : {1.0, 1.0, 1.0}) {
    scheduler.step(loss);
  }
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5));
}

TEST(Scheduler, DescribesItselfInWords) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear net(1, 1);
  auto [optimizer, scheduler] = accelerator.prepare(
      optim::SGD(net->parameters(), {.lr = 0.25}),
      schedule::warmup_cosine({.warmup_steps = 10, .total_steps = 100}));
  EXPECT_THAT(scheduler.describe(), HasSubstr("0.25 at step 10"));
}

TEST(Scheduler, ResumesFromItsStateAndRefusesAnothers) {
  const auto prepared = [](Accelerator& accelerator, schedule::Schedule schedule) {
    Linear net(1, 1);
    return accelerator.prepare(optim::SGD(net->parameters(), {.lr = 1.0}), std::move(schedule));
  };
  Accelerator accelerator({}, WorldSpec{}, Group());
  auto [optimizer, scheduler] = prepared(accelerator, schedule::warmup_linear({.total_steps = 8}));
  scheduler.step();
  scheduler.step();
  auto [other, resumed] = prepared(accelerator, schedule::warmup_linear({.total_steps = 8}));
  resumed.check_state(scheduler.state(), "here")();
  resumed.step();
  EXPECT_EQ(resumed.get_last_lr()[0], 1 - 3.0 / 8);
  auto [third, constant] = prepared(accelerator, schedule::constant());
  EXPECT_THROW(constant.check_state(scheduler.state(), "here"), CheckpointError);
}

TEST(Scheduler, ResumedUnderAnotherLengthTakesItsRatesAtOnce) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  const auto prepared = [&](int64_t total) {
    Linear net(1, 1);
    return accelerator.prepare(
        optim::SGD(net->parameters(), {.lr = 1.0}),
        schedule::warmup_linear({.total_steps = total}));
  };
  auto [optimizer, scheduler] = prepared(4);
  for (int step = 0; step < 4; ++step) {
    scheduler.step();
  }
  auto [longer_optimizer, longer] = prepared(8);
  longer.check_state(scheduler.state(), "here")();
  EXPECT_THAT(longer_optimizer.learning_rates(), ElementsAre(0.5));
  auto [shorter_optimizer, shorter] = prepared(3);
  EXPECT_THROW(shorter.check_state(scheduler.state(), "here"), CheckpointError);
}

TEST(Scheduler, IsDescribedOnceOnRequest) {
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  Accelerator accelerator({.print_schedules = true}, WorldSpec{}, Group());
  Linear net(1, 1);
  accelerator.prepare(
      optim::SGD(net->parameters(), {.lr = 1.0}), schedule::warmup_linear({.total_steps = 4}));
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("warmup_linear"));
}

}  // namespace
}  // namespace lockstep
