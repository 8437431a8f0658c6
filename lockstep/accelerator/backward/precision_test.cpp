// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/schedule/warmup_schedules.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using torch::nn::Linear;

Linear plain_net(float weight = 0.5) {
  Linear net(2, 1);
  torch::NoGradGuard no_grad;
  net->weight.fill_(weight);
  net->bias.fill_(0.25);
  return net;
}

TEST(MixedPrecision, AutocastComputesInItAndBackwardGivesFp32Gradients) {
  for (const auto& [precision, dtype] :
       {std::pair{Precision::kBF16, at::kBFloat16}, {Precision::kFP16, at::kHalf}}) {
    accelerated_ranks(2, {.mixed_precision = precision}, [&](Accelerator& accelerator) {
      auto net = accelerator.prepare(plain_net());
      const at::Tensor loss = [&] {
        auto cast = accelerator.autocast();
        const at::Tensor y = net->forward(at::ones({4, 2}));
        EXPECT_EQ(y.scalar_type(), dtype);
        return y.to(at::kFloat).mean();
      }();
      EXPECT_EQ(net->forward(at::ones({4, 2})).scalar_type(), at::kFloat);
      accelerator.backward(loss);
      EXPECT_EQ(net->weight.grad().scalar_type(), at::kFloat);
    });
  }
}

TEST(MixedPrecision, Fp16TrainsAsFp32DoesWithinItsRounding) {
  const auto train = [](const AcceleratorOptions& options) {
    Accelerator accelerator(options, WorldSpec{}, Group());
    Linear net = plain_net();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
    const at::Tensor x = at::sin(at::arange(16, at::kFloat)).reshape({8, 2});
    for (int step = 0; step < 20; ++step) {
      const at::Tensor loss = [&] {
        auto cast = accelerator.autocast();
        return (model->forward(x).to(at::kFloat) - 1).pow(2).mean();
      }();
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model->parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(optimizer.steps(), 20);
    return net->weight.detach().clone();
  };
  const at::Tensor expected = train({.mixed_precision = Precision::kNo});
  const at::Tensor half =
      train({.mixed_precision = Precision::kFP16, .grad_scaler = {.init_scale = 1024}});
  EXPECT_TRUE(at::allclose(half, expected, 1e-2, 1e-3)) << half << expected;
  EXPECT_FALSE(at::equal(half, expected)) << "computed in fp32 after all";
}

TEST(MixedPrecision, AnOverflowOnOneRankSkipsTheUpdateOnAllAndHoldsTheScheduler) {
  accelerated_ranks(2, {.mixed_precision = Precision::kFP16}, [](Accelerator& accelerator) {
    Linear net = plain_net();
    auto [model, optimizer, scheduler] = accelerator.prepare(
        net,
        torch::optim::SGD(net->parameters(), 0.1),
        schedule::warmup_linear({.total_steps = 10}));
    const auto step = [&](float factor) {
      accelerator.backward(model->forward(at::ones({1, 2})).sum() * factor);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    };
    step(1);
    EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
    EXPECT_EQ(scheduler.steps(), 1);
    const at::Tensor before = model->weight.detach().clone();
    const double scale = accelerator.scaler()->get_scale();
    step(accelerator.process_index() == 1 ? std::numeric_limits<float>::infinity() : 1);
    EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
    EXPECT_EQ(scheduler.steps(), 1);
    EXPECT_EQ(optimizer.steps(), 1);
    EXPECT_TRUE(at::equal(model->weight, before));
    EXPECT_EQ(accelerator.scaler()->get_scale(), scale / 2);
  });
}

TEST(MixedPrecision, AGroupKeepsItsScaleWhenAnotherOptimizerStepsWithinIt) {
  Accelerator accelerator(
      {.mixed_precision = Precision::kFP16,
       .grad_scaler = {.init_scale = 8, .growth_interval = 1},
       .gradient_accumulation_steps = 2},
      WorldSpec{},
      Group());
  Linear first = plain_net(), second = plain_net();
  auto [a, b, a_optimizer, b_optimizer] = accelerator.prepare(
      first,
      second,
      torch::optim::SGD(first->parameters(), 0.0),
      torch::optim::SGD(second->parameters(), 1.0));
  for (int step = 0; step < 2; ++step) {
    auto micro_step = accelerator.accumulate(a, b);
    accelerator.backward(a->forward(at::ones({1, 2})).sum());
    accelerator.clip_grad_norm_(a->parameters(), 100);
    a_optimizer.step();
    accelerator.backward(b->forward(at::ones({1, 2})).sum());
    b_optimizer.step();
  }
  EXPECT_EQ(second->weight[0][0].item<float>(), 0.5 - 1);
}

TEST(MixedPrecision, FollowsAcceleratesVariableAndWarnsIfNothingIsCast) {
  setenv("ACCELERATE_MIXED_PRECISION", "bf16", 1);
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  Accelerator accelerator({}, WorldSpec{}, Group());
  unsetenv("ACCELERATE_MIXED_PRECISION");
  EXPECT_EQ(accelerator.mixed_precision(), Precision::kBF16);
  auto net = accelerator.prepare(plain_net());
  accelerator.backward(net->forward(at::ones({1, 2})).sum());
  accelerator.backward(net->forward(at::ones({1, 2})).sum());
  set_log_sink({});
  EXPECT_THAT(
      lines, Contains(HasSubstr("no forward has run under accelerator.autocast()")).Times(1));
}

TEST(Clipping, ReturnsTheGlobalNormOnceAndChangesNothingTheSecondTime) {
  accelerated_ranks(2, {.mixed_precision = Precision::kFP16}, [](Accelerator& accelerator) {
    Linear net = plain_net();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const auto mine = static_cast<float>(accelerator.process_index() + 1);
    accelerator.backward(model->forward(at::full({1, 2}, mine)).sum());
    // Averaged: 1.5 for both weights, 1 for the bias.
    const double expected = std::sqrt(1.5 * 1.5 * 2 + 1);
    const at::Tensor norm = accelerator.clip_grad_norm_(model->parameters(), 1);
    EXPECT_EQ(norm.dim(), 0);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-6);
    const at::Tensor clipped = model->weight.grad().clone();
    EXPECT_NEAR(clipped[0][0].item<double>(), 1.5 / expected, 1e-5);
    EXPECT_TRUE(accelerator.clip_grad_norm_(model->parameters(), 1).is_same(norm));
    EXPECT_TRUE(at::equal(model->weight.grad(), clipped));
    accelerator.unscale_gradients();
    EXPECT_TRUE(at::equal(model->weight.grad(), clipped));
    EXPECT_NEAR(accelerator.gradient_norms().before.item<double>(), expected, 1e-6);
    EXPECT_NEAR(accelerator.gradient_norms().after.item<double>(), 1, 1e-6);
    accelerator.clip_grad_value_(model->parameters(), 0.1);
    EXPECT_NEAR(model->weight.grad()[0][0].item<double>(), 0.1, 1e-6);
    optimizer.step();
    EXPECT_NEAR(model->weight[0][0].item<double>(), 0.5 - 0.01, 1e-6);
  });
}

TEST(Clipping, DoesNotClipGradientsThatStillAccumulate) {
  Accelerator accelerator({.gradient_accumulation_steps = 2}, WorldSpec{}, Group());
  auto net = accelerator.prepare(plain_net());
  auto micro_step = accelerator.accumulate(net);
  accelerator.backward(net->forward(at::ones({1, 2})).sum());
  const at::Tensor before = net->weight.grad().clone();
  accelerator.clip_grad_norm_(net->parameters(), 1e-3);
  accelerator.clip_grad_value_(net->parameters(), 1e-3);
  EXPECT_TRUE(at::equal(net->weight.grad(), before));
}

TEST(NonFinite, StopNamesStepRankAndParameter) {
  accelerated_ranks(3, {.non_finite = NonFinitePolicy::kStop}, [](Accelerator& accelerator) {
    Linear net = plain_net();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    auto step = [&, model = model](float factor) mutable {
      accelerator.backward(model->forward(at::ones({1, 2})).sum() * factor);
    };
    step(1);
    optimizer.step();
    step(accelerator.process_index() == 1 ? NAN : 1);
    try {
      optimizer.step();
      ADD_FAILURE() << "a NaN was stepped over";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("in step 2"));
      EXPECT_THAT(error.what(), HasSubstr("on rank 1 became"));
      EXPECT_THAT(error.what(), ::testing::AnyOf(HasSubstr("weight"), HasSubstr("bias")));
    }
  });
}

TEST(NonFinite, SkipOmitsTheUpdateOnAllRanksAndIgnoreDoesNot) {
  for (const auto policy : {NonFinitePolicy::kSkip, NonFinitePolicy::kIgnore}) {
    accelerated_ranks(2, {.non_finite = policy}, [&](Accelerator& accelerator) {
      Linear net = plain_net();
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      accelerator.backward(
          model->forward(at::ones({1, 2})).sum() * (accelerator.is_main_process() ? NAN : 1));
      optimizer.step();
      const bool finite = std::isfinite(model->weight.sum().item<float>());
      EXPECT_EQ(finite, policy == NonFinitePolicy::kSkip);
      EXPECT_EQ(accelerator.optimizer_step_was_skipped(), policy == NonFinitePolicy::kSkip);
    });
  }
}

TEST(NonFinite, ASkippedStepWithFp16DoesNotConfuseTheScaler) {
  accelerated_ranks(
      2,
      {.mixed_precision = Precision::kFP16,
       .grad_scaler = {.init_scale = 8},
       .non_finite = NonFinitePolicy::kSkip},
      [](Accelerator& accelerator) {
        Linear net = plain_net();
        auto [model, optimizer] =
            accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
        for (const float factor : {NAN, 1.0F}) {
          accelerator.backward(model->forward(at::ones({1, 2})).sum() * factor);
          accelerator.clip_grad_norm_(model->parameters(), 100);
          optimizer.step();
          optimizer.zero_grad();
        }
        EXPECT_EQ(optimizer.steps(), 1);
        EXPECT_FLOAT_EQ(model->weight[0][0].item<float>(), 0.4F);
      });
}

TEST(Clipping, ClipsAfterABackwardOfOnesOwnAsWell) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  Linear net = plain_net();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
  for (int step = 0; step < 3; ++step) {
    model->forward(at::full({1, 2}, 100.0)).sum().backward();
    accelerator.clip_grad_norm_(model->parameters(), 1);
    EXPECT_LE(model->weight.grad().norm().item<double>(), 1.001) << step;
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(NonFinite, Fp16StopsIfTheScaleCannotBeLower) {
  Accelerator accelerator(
      {.mixed_precision = Precision::kFP16,
       .grad_scaler = {.init_scale = 2},
       .non_finite = NonFinitePolicy::kStop},
      WorldSpec{},
      Group());
  Linear net = plain_net();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto step = [&, model = model, optimizer = optimizer]() mutable {
    // A finite loss with a gradient that is not: the square root at zero.
    accelerator.backward((model->forward(at::zeros({1, 2})).sum() - 0.25).abs().sqrt());
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  EXPECT_THROW(step(), Error);
  EXPECT_THROW(optimizer.step([] { return at::ones({}); }), ConfigError);
}

}  // namespace
}  // namespace lockstep
