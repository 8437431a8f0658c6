// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

at::Tensor regression_loss(Linear net, const data::Batch& batch) {
  return (net->forward(batch.data) - batch.target.unsqueeze(1).to(at::kFloat)).pow(2).mean();
}

/// The weights after two epochs over 24 samples: `steps` micro-batches of `batch_size` an update.
at::Tensor weights_after_two_epochs(Accelerator& accelerator, int64_t batch_size, int64_t updates) {
  auto [net, optimizer, loader] = [&] {
    Linear fresh = one_by_one();
    return accelerator.prepare(
        fresh,
        torch::optim::SGD(fresh->parameters(), 1e-3),
        numbers(24, {.batch_size = batch_size}));
  }();
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      auto micro_step = accelerator.accumulate(net);
      accelerator.backward(regression_loss(net, batch));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  EXPECT_EQ(optimizer.steps(), updates);
  return at::cat({net->weight.flatten(), net->bias}).detach();
}

TEST(Accumulate, FourSmallBatchesEqualOneLargeOne) {
  Accelerator whole({}, WorldSpec{}, Group());
  const at::Tensor expected = weights_after_two_epochs(whole, 8, 6);
  Accelerator parts({.gradient_accumulation_steps = 4}, WorldSpec{}, Group());
  EXPECT_TRUE(at::allclose(weights_after_two_epochs(parts, 2, 6), expected, 1e-6, 1e-6));
  accelerated_ranks(2, {.gradient_accumulation_steps = 2}, [&](Accelerator& accelerator) {
    EXPECT_TRUE(at::allclose(weights_after_two_epochs(accelerator, 2, 6), expected, 1e-6, 1e-6));
  });
}

TEST(Accumulate, TheLastSmallerGroupIsTheMeanOfItsMicroSteps) {
  // 24 samples in batches of 2 and groups of 5: 5, 5 and 2. Accelerate divides the last by 5.
  Accelerator accelerator({.gradient_accumulation_steps = 5}, WorldSpec{}, Group());
  auto [net, loader] = accelerator.prepare(one_by_one(), numbers(24, {.batch_size = 2}));
  std::vector<int64_t> ends;
  at::Tensor sum = at::zeros({});
  int64_t index = 0, in_group = 0;
  for (auto& batch : loader) {
    auto micro_step = accelerator.accumulate(net);
    const at::Tensor loss = regression_loss(net, batch);
    sum += torch::autograd::grad({loss}, {net->weight}, {}, true)[0].sum();
    accelerator.backward(loss);
    ++in_group;
    if (accelerator.sync_gradients()) {
      ends.push_back(index);
      EXPECT_NEAR(net->weight.grad().item<float>(), (sum / in_group).item<float>(), 1e-3);
      net->zero_grad();
      sum.zero_();
      in_group = 0;
    }
    ++index;
  }
  EXPECT_THAT(ends, ElementsAre(4, 9, 11));
}

TEST(Accumulate, TheLastSmallerGroupIsDividedByTheNumberOfStepsIfRequested) {
  // Six losses of 1 in groups of 4: 4 / 4, then 2 / 4, as in Accelerate.
  Accelerator accelerator(
      {.gradient_accumulation_plugin =
           GradientAccumulationPlugin{.num_steps = 4, .rescale_short_group = false}},
      WorldSpec{},
      Group());
  auto [net, loader] = accelerator.prepare(one_by_one(), numbers(6, {.batch_size = 1}));
  std::vector<float> gradients;
  for ([[maybe_unused]] auto& batch : loader) {
    auto micro_step = accelerator.accumulate(net);
    accelerator.backward(net->forward(at::ones({1, 1})).sum());
    if (accelerator.sync_gradients()) {
      gradients.push_back(net->weight.grad().item<float>());
      net->zero_grad();
    }
  }
  EXPECT_THAT(gradients, ElementsAre(1.0F, 0.5F));
}

TEST(Accumulate, GradientsStayOnTheirRankUntilTheGroupEnds) {
  accelerated_ranks(2, {.gradient_accumulation_steps = 2}, [](Accelerator& accelerator) {
    auto net = accelerator.prepare(one_by_one());
    const float mine = static_cast<float>(accelerator.process_index() + 1);
    const auto micro_step = [&] {
      auto scope = accelerator.accumulate(net);
      accelerator.backward(net->forward(at::full({1, 1}, mine)).sum());
    };
    micro_step();
    EXPECT_FALSE(accelerator.sync_gradients());
    EXPECT_EQ(net->weight.grad().item<float>(), mine / 2);
    micro_step();
    EXPECT_TRUE(accelerator.sync_gradients());
    EXPECT_EQ(net->weight.grad().item<float>(), 1.5);
  });
}

TEST(Accumulate, SyncEachBatchAveragesEveryMicroStep) {
  const AcceleratorOptions options{
      .gradient_accumulation_plugin =
          GradientAccumulationPlugin{.num_steps = 2, .sync_each_batch = true}};
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    auto net = accelerator.prepare(one_by_one());
    auto scope = accelerator.accumulate(net);
    const auto mine = static_cast<float>(accelerator.process_index() + 1);
    accelerator.backward(net->forward(at::full({1, 1}, mine)).sum());
    EXPECT_FALSE(accelerator.sync_gradients());
    EXPECT_EQ(net->weight.grad().item<float>(), 0.75);
  });
}

TEST(Accumulate, WithoutSyncWithDataloaderAGroupContinuesInTheNextEpoch) {
  const AcceleratorOptions options{
      .gradient_accumulation_plugin =
          GradientAccumulationPlugin{.num_steps = 4, .sync_with_dataloader = false}};
  Accelerator accelerator(options, WorldSpec{}, Group());
  auto [net, loader] = accelerator.prepare(one_by_one(), numbers(6, {.batch_size = 1}));
  std::vector<bool> synced;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      auto micro_step = accelerator.accumulate(net);
      accelerator.backward(regression_loss(net, batch));
      synced.push_back(accelerator.sync_gradients());
    }
  }
  EXPECT_THAT(synced, ElementsAre(0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1));
}

TEST(Accumulate, ALoopThatEndsEarlyKeepsItsGroupOpen) {
  Accelerator accelerator({.gradient_accumulation_steps = 3}, WorldSpec{}, Group());
  auto [net, loader] = accelerator.prepare(one_by_one(), numbers(9, {.batch_size = 1}));
  for (auto& batch : loader) {
    auto micro_step = accelerator.accumulate(net);
    accelerator.backward(regression_loss(net, batch));
    break;
  }
  std::vector<bool> synced;
  for (auto& batch : loader) {
    auto micro_step = accelerator.accumulate(net);
    accelerator.backward(regression_loss(net, batch));
    synced.push_back(accelerator.sync_gradients());
  }
  // One of three was done; the last batch ends the last group.
  EXPECT_THAT(synced, ElementsAre(0, 1, 0, 0, 1, 0, 0, 1, 1));
}

TEST(Accumulate, TheEndOfAnInnerLoaderEndsAGroupAndAFinishedOneDoesNotCount) {
  Accelerator accelerator({.gradient_accumulation_steps = 4}, WorldSpec{}, Group());
  auto [net, outer, inner] = accelerator.prepare(
      one_by_one(), numbers(5, {.batch_size = 1}), numbers(2, {.batch_size = 1}));
  std::vector<bool> synced;
  int64_t index = 0;
  for (auto& batch : outer) {
    if (index++ == 1) {
      for (auto& other : inner) {
        auto micro_step = accelerator.accumulate(net);
        accelerator.backward(regression_loss(net, other));
        synced.push_back(accelerator.sync_gradients());
      }
    }
    auto micro_step = accelerator.accumulate(net);
    accelerator.backward(regression_loss(net, batch));
    synced.push_back(accelerator.sync_gradients());
  }
  EXPECT_THAT(synced, ElementsAre(0, 0, 1, 0, 0, 0, 1));
}

TEST(Accumulate, RefusesAScopeWithinAScopeAndAnUnpreparedModel) {
  Accelerator accelerator({.gradient_accumulation_steps = 2}, WorldSpec{}, Group());
  auto net = accelerator.prepare(one_by_one());
  {
    auto scope = accelerator.accumulate(net);
    EXPECT_THROW(auto inner = accelerator.accumulate(net), ConfigError);
  }
  EXPECT_THROW(auto scope = accelerator.accumulate(one_by_one()), ConfigError);
}

TEST(Accumulate, CountsBothWaysOfSettingTheSteps) {
  EXPECT_THROW(
      Accelerator(
          {.gradient_accumulation_steps = 2,
           .gradient_accumulation_plugin = GradientAccumulationPlugin{}},
          WorldSpec{},
          Group()),
      ConfigError);
  EXPECT_THROW(Accelerator({.gradient_accumulation_steps = 0}, WorldSpec{}, Group()), ConfigError);
  EXPECT_THROW(
      Accelerator(
          {.gradient_accumulation_plugin = GradientAccumulationPlugin{.adjust_scheduler = true}},
          WorldSpec{},
          Group()),
      ConfigError);
}

TEST(Accumulate, ANewNumberOfStepsHoldsFromTheNextGroup) {
  Accelerator accelerator({.gradient_accumulation_steps = 1}, WorldSpec{}, Group());
  auto net = accelerator.prepare(one_by_one());
  accelerator.set_gradient_accumulation_steps(2);
  {
    auto micro_step = accelerator.accumulate(net);
    EXPECT_FALSE(accelerator.sync_gradients());
    accelerator.backward(net->forward(at::full({1, 1}, 1.0F)).sum());
  }
  EXPECT_THAT(
      [&] { accelerator.set_gradient_accumulation_steps(3); },
      ThrowsMessage<ConfigError>(HasSubstr("set within an accumulation group")));
  {
    auto micro_step = accelerator.accumulate(net);
    EXPECT_TRUE(accelerator.sync_gradients());
    accelerator.backward(net->forward(at::full({1, 1}, 5.0F)).sum());
  }
  EXPECT_EQ(net->weight.grad().item<float>(), 3) << "the mean of both micro-steps";
  EXPECT_THROW(accelerator.set_gradient_accumulation_steps(0), ConfigError);
}

TEST(NoSync, KeepsGradientsLocalUntilABackwardOutsideOrATrigger) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    auto net = accelerator.prepare(one_by_one());
    const auto mine = static_cast<float>(accelerator.process_index() + 1);
    const auto backward = [&] { accelerator.backward(net->forward(at::full({1, 1}, mine)).sum()); };
    {
      auto held = accelerator.no_sync(net);
      backward();
      EXPECT_EQ(net->weight.grad().item<float>(), mine);
      accelerator.trigger_sync_in_backward(net);
      backward();
      EXPECT_EQ(net->weight.grad().item<float>(), 3);
    }
    net->weight.mutable_grad().zero_();
    {
      auto held = accelerator.no_sync();
      backward();
    }
    backward();
    EXPECT_EQ(net->weight.grad().item<float>(), 3);
  });
}

/// Eight sequences of different length; the gradient of the mean loss over all their tokens.
std::vector<at::Tensor> sequences() {
  std::vector<at::Tensor> all;
  for (int64_t length : {3, 1, 4, 1, 5, 9, 2, 6}) {
    all.push_back(at::sin(at::arange(length, at::kFloat) * static_cast<double>(length)));
  }
  return all;
}

at::Tensor token_losses(Linear net, const at::Tensor& sequence) {
  return (net->forward(sequence.unsqueeze(1)) - 1).pow(2).sum();
}

TEST(TokenCounts, OneTwoAndFourRanksTimesMicroStepsGiveTheSameGradient) {
  const std::vector<at::Tensor> all = sequences();
  Linear alone = one_by_one();
  at::Tensor total = at::zeros({});
  int64_t tokens = 0;
  for (const at::Tensor& sequence : all) {
    total = total + token_losses(alone, sequence);
    tokens += sequence.numel();
  }
  (total / tokens).backward();
  const float expected = alone->weight.grad().item<float>();

  for (const auto& [world, steps] : {std::pair{1, 8}, {2, 4}, {4, 2}}) {
    const auto body = [&](Accelerator& accelerator) {
      auto net = accelerator.prepare(one_by_one());
      for (int step = 0; step < steps; ++step) {
        auto micro_step = accelerator.accumulate(net);
        const int sequence = step * world + accelerator.process_index();
        const at::Tensor& mine = all[static_cast<size_t>(sequence)];
        accelerator.backward(token_losses(net, mine), static_cast<double>(mine.numel()));
      }
      ASSERT_TRUE(accelerator.sync_gradients());
      EXPECT_NEAR(net->weight.grad().item<float>(), expected, 1e-6) << world << " x " << steps;
    };
    accelerated_ranks(world, {.gradient_accumulation_steps = steps}, body);
  }
}

TEST(TokenCounts, ARankWithoutTokensIsAllowedAndZeroTokensInTotalAreAnError) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    auto net = accelerator.prepare(one_by_one());
    const bool main = accelerator.is_main_process();
    const at::Tensor x = at::ones({main ? 4 : 0, 1});
    accelerator.backward(net->forward(x).sum(), main ? 4 : 0);
    EXPECT_EQ(net->weight.grad().item<float>(), 1);
    EXPECT_THROW(accelerator.backward(net->forward(x).sum(), 0), ConfigError);
  });
}

TEST(TokenCounts, AGroupHasCountsInAllMicroStepsOrInNone) {
  Accelerator accelerator({.gradient_accumulation_steps = 2}, WorldSpec{}, Group());
  auto net = accelerator.prepare(one_by_one());
  const auto loss = [&] { return net->forward(at::ones({1, 1})).sum(); };
  {
    auto micro_step = accelerator.accumulate(net);
    accelerator.backward(loss(), 1);
    EXPECT_THROW(accelerator.backward(loss(), 1), ConfigError);
  }
  {
    auto micro_step = accelerator.accumulate(net);
    EXPECT_THROW(accelerator.backward(loss()), ConfigError);
  }
}

TEST(Accumulate, SeveralModelsWithOneBackwardEach) {
  accelerated_ranks(2, {.gradient_accumulation_steps = 2}, [](Accelerator& accelerator) {
    auto [first, second] = accelerator.prepare(one_by_one(), one_by_one());
    const auto mine = static_cast<float>(accelerator.process_index() + 1);
    for (int step = 0; step < 2; ++step) {
      auto micro_step = accelerator.accumulate(first, second);
      accelerator.backward(first->forward(at::full({1, 1}, mine)).sum());
      accelerator.backward(second->forward(at::full({1, 1}, mine * 10)).sum());
    }
    EXPECT_EQ(first->weight.grad().item<float>(), 1.5);
    EXPECT_EQ(second->weight.grad().item<float>(), 15);
  });
}

TEST(Accumulate, AStateSavedWithinAGroupContinuesWithinIt) {
  for (const bool counts : {false, true}) {
    const TestFolder folder;
    accelerated_ranks(2, {.gradient_accumulation_steps = 3}, [&](Accelerator& accelerator) {
      const auto prepared = [&] {
        Linear net = one_by_one();
        return accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      };
      const auto micro = [&](auto& model, auto& optimizer, int index) {
        auto micro_step = accelerator.accumulate(model);
        const double mine = index + accelerator.process_index() * 0.5;
        const at::Tensor loss = model->forward(at::full({1, 1}, mine)).sum();
        counts ? accelerator.backward(loss, index + 1) : accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
      };
      auto [model, optimizer] = prepared();
      for (int index = 0; index < 4; ++index) {
        micro(model, optimizer, index);
      }
      accelerator.save_state(folder.path() / "saved");
      for (int index = 4; index < 6; ++index) {
        micro(model, optimizer, index);
      }
      const at::Tensor expected = model->weight.detach().clone();
      // A micro-step after the save is taken back as well.
      micro(model, optimizer, 1000);
      accelerator.load_state(folder.path() / "saved");
      for (int index = 4; index < 6; ++index) {
        micro(model, optimizer, index);
      }
      EXPECT_TRUE(at::equal(model->weight, expected));
      accelerator.free_memory();
      auto [fresh, fresh_optimizer] = prepared();
      accelerator.load_state(folder.path() / "saved");
      for (int index = 4; index < 6; ++index) {
        micro(fresh, fresh_optimizer, index);
      }
      EXPECT_TRUE(at::equal(fresh->weight, expected));
    });
  }
}

TEST(NoSync, ATriggerOutsideIsRefused) {
  Accelerator accelerator({}, WorldSpec{}, Group());
  auto net = accelerator.prepare(one_by_one());
  EXPECT_THROW(accelerator.trigger_sync_in_backward(net), ConfigError);
}

}  // namespace
}  // namespace lockstep
