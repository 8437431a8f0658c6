// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/local_sgd/local_sgd.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep {
namespace {

using torch::nn::Linear;

/// Two epochs; returns the weights. `period` 0: plain data parallel.
at::Tensor trained_weights(Accelerator& accelerator, int64_t period) {
  Linear net = one_by_one();
  auto [model, optimizer, loader] =
      accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.05}), shuffled_numbers(24));
  LocalSgd local_sgd(
      accelerator, model, {.local_sgd_steps = std::max<int64_t>(period, 1), .enabled = period > 0});
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      auto micro_step = accelerator.accumulate(model);
      accelerator.backward(
          (model->forward(batch.data) - batch.target.unsqueeze(1)).pow(2).mean() * 0.01);
      optimizer.step();
      optimizer.zero_grad();
      local_sgd.step();
    }
  }
  local_sgd.finish();
  return at::cat({model->weight.flatten(), model->bias}).detach().clone();
}

TEST(LocalSgd, WithAPeriodOfOneEqualsDataParallelBitForBit) {
  accelerated_ranks(2, {.gradient_accumulation_steps = 2}, [](Accelerator& accelerator) {
    const at::Tensor expected = trained_weights(accelerator, 0);
    EXPECT_TRUE(at::equal(trained_weights(accelerator, 1), expected));
    EXPECT_FALSE(at::equal(trained_weights(accelerator, 3), expected));
  });
}

TEST(LocalSgd, AveragesEveryNUpdatesAndAtTheEnd) {
  accelerated_ranks(2, {.gradient_accumulation_steps = 2}, [](Accelerator& accelerator) {
    Linear net = one_by_one();
    auto [model, optimizer] = accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.1}));
    LocalSgd local_sgd(accelerator, model, {.local_sgd_steps = 2});
    std::vector<bool> averaged, same;
    for (int step = 0; step < 6; ++step) {
      auto micro_step = accelerator.accumulate(model);
      const auto mine = static_cast<float>(accelerator.process_index() + 1);
      accelerator.backward(model->forward(at::full({1, 1}, mine)).sum());
      optimizer.step();
      optimizer.zero_grad();
      averaged.push_back(local_sgd.step());
      same.push_back(is_same_on_all(accelerator, model->weight));
    }
    EXPECT_THAT(averaged, ::testing::ElementsAre(0, 0, 0, 1, 0, 0));
    EXPECT_THAT(same, ::testing::ElementsAre(1, 0, 0, 1, 1, 0));
    EXPECT_EQ(local_sgd.steps(), 3);
    local_sgd.finish();
    // Every update took 0.1 times the mean of 1 and 2.
    EXPECT_NEAR(model->weight.item<float>(), 0.5 - 3 * 0.15, 1e-6);
    accelerator.backward(
        model->forward(at::full({1, 1}, static_cast<float>(accelerator.process_index()))).sum());
    EXPECT_TRUE(is_same_on_all(accelerator, model->weight.grad())) << "data parallel again";
  });
}

TEST(LocalSgd, WithoutStepFinishAveragesAndASaveIsRefused) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net = one_by_one();
    auto [model, optimizer] = accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.1}));
    LocalSgd local_sgd(accelerator, model, {.local_sgd_steps = 2});
    const auto mine = static_cast<float>(accelerator.process_index() + 1);
    accelerator.backward(model->forward(at::full({1, 1}, mine)).sum());
    optimizer.step();
    EXPECT_THAT(
        error_of<ConfigError>([&] { accelerator.save_state(folder / "save"); }),
        ::testing::HasSubstr("[save_state] parameter weight must be equal on all ranks"));
    local_sgd.finish();
    EXPECT_NEAR(model->weight.item<float>(), 0.5 - 0.15, 1e-6);
    EXPECT_TRUE(is_same_on_all(accelerator, model->weight));
  });
}

TEST(LocalSgd, AnExceptionCommunicatesNothing) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    auto model = accelerator.prepare(one_by_one());
    try {
      LocalSgd local_sgd(accelerator, model);
      throw std::runtime_error("the loop failed");
    } catch (const std::runtime_error&) {
    }
    accelerator.wait_for_everyone();
    LocalSgd again(accelerator, model);
    EXPECT_THROW(LocalSgd twice(accelerator, model), ConfigError);
    again.finish();
    EXPECT_THROW(LocalSgd(accelerator, one_by_one()), ConfigError);
    EXPECT_THROW(LocalSgd(accelerator, model, {.local_sgd_steps = 0}), ConfigError);
  });
}

TEST(LocalSgd, ResumesWithinAPeriodBitExactly) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    const auto steps = [&](auto& model, auto& optimizer, LocalSgd& local_sgd, int from, int to) {
      for (int step = from; step < to; ++step) {
        const at::Tensor x = at::sin(at::full({2, 1}, step + accelerator.process_index() * 0.5));
        accelerator.backward((model->forward(x) - 1).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
        local_sgd.step();
      }
    };
    Linear net = one_by_one();
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}));
    {
      LocalSgd local_sgd(accelerator, model, {.local_sgd_steps = 3});
      steps(model, optimizer, local_sgd, 0, 4);
      accelerator.save_state(folder.path() / "saved");
      steps(model, optimizer, local_sgd, 4, 8);
      local_sgd.finish();
    }
    const at::Tensor expected = model->weight.detach().clone();

    accelerator.free_memory();
    Linear fresh(1, 1);
    auto [resumed, again] =
        accelerator.prepare(fresh, optim::AdamW(fresh->parameters(), {.lr = 0.3}));
    accelerator.load_state(folder.path() / "saved");
    LocalSgd local_sgd(accelerator, resumed, {.local_sgd_steps = 3});
    EXPECT_EQ(local_sgd.steps(), 4);
    steps(resumed, again, local_sgd, 4, 8);
    local_sgd.finish();
    EXPECT_TRUE(at::equal(resumed->weight, expected));
  });
}

TEST(LocalSgd, LeavesOptimizersEqualForDataParallelAfterwards) {
  for (const auto state : {LocalOptimizerState::kKeep, LocalOptimizerState::kAverage}) {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      Linear net = one_by_one();
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}));
      auto step = [&, model = model, optimizer = optimizer](int index) mutable {
        const double mine = index + accelerator.process_index() * 0.7;
        accelerator.backward((model->forward(at::full({1, 1}, mine)) - 1).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      };
      LocalSgd local_sgd(accelerator, model, {.local_sgd_steps = 3, .optimizer_state = state});
      for (int index = 0; index < 4; ++index) {
        step(index);
        local_sgd.step();
      }
      local_sgd.finish();
      for (int index = 0; index < 5; ++index) {
        step(index);
      }
      EXPECT_TRUE(is_same_on_all(accelerator, model->weight));
    });
  }
}

TEST(LocalSgd, MayOutliveThePreparedObjects) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    auto model = accelerator.prepare(one_by_one());
    LocalSgd local_sgd(accelerator, model);
    accelerator.free_memory(model);
    EXPECT_FALSE(local_sgd.step());
  });
}

TEST(LocalSgd, AStateSavedWithinOneMayBeLoadedWithout) {
  const TestFolder folder;
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    const auto prepared = [&] {
      Linear net = one_by_one();
      return accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}));
    };
    const auto step = [&](auto& model, auto& optimizer) {
      const double mine = accelerator.process_index() * 0.7 - 1;
      accelerator.backward((model->forward(at::full({1, 1}, mine)) - 1).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    };
    {
      auto [model, optimizer] = prepared();
      LocalSgd local_sgd(accelerator, model, {.local_sgd_steps = 8});
      step(model, optimizer);
      local_sgd.step();
      accelerator.save_state(folder.path() / "saved");
      local_sgd.finish();
      accelerator.free_memory();
    }
    auto [model, optimizer] = prepared();
    accelerator.load_state(folder.path() / "saved");
    for (int index = 0; index < 3; ++index) {
      step(model, optimizer);
    }
    EXPECT_TRUE(is_same_on_all(accelerator, model->weight));
  });
}

}  // namespace
}  // namespace lockstep
