// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/join/uneven_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep::internal {
namespace {

using torch::nn::Linear;

TEST(JoinUnevenInputs, RanksWithFewerBatchesShadowTheOthers) {
  const AcceleratorOptions options{.even_batches = true};
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    Linear net = one_by_one();
    auto [model, optimizer, loader] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}), shuffled_numbers(6));
    int batches = 0;
    accelerator.join_uneven_inputs(
        {.even_batches = false},
        [&, model = model, optimizer = optimizer, loader = loader]() mutable {
          for (auto& batch : loader) {
            accelerator.backward((model->forward(batch.data) - 1).pow(2).mean());
            optimizer.step();
            optimizer.zero_grad();
            ++batches;
          }
        });
    EXPECT_EQ(batches, accelerator.is_main_process() ? 2 : 1);
    EXPECT_TRUE(is_same_on_all(accelerator, model->weight));
    EXPECT_EQ(optimizer.steps(), 2);
    EXPECT_EQ(loader.size(), 2) << "even again";
    // The state of the optimizer is the same too: another step keeps weights equal.
    accelerator.backward((model->forward(at::ones({1, 1})) - 1).pow(2).mean());
    optimizer.step();
    EXPECT_TRUE(is_same_on_all(accelerator, model->weight));
  });
}

TEST(JoinUnevenInputs, WorksWithFp16AndRefusesCountsAndLocalSgd) {
  const AcceleratorOptions options{
      .mixed_precision = Precision::kFP16, .grad_scaler = {.init_scale = 64}};
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    Linear net = one_by_one();
    auto [model, optimizer, loader] =
        accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.1}), shuffled_numbers(6));
    accelerator.join_uneven_inputs(
        {.even_batches = false},
        [&, model = model, optimizer = optimizer, loader = loader]() mutable {
          EXPECT_THROW(
              accelerator.backward(model->forward(at::ones({1, 1})).sum(), 1), ConfigError);
          EXPECT_THROW(LocalSgd(accelerator, model), ConfigError);
          for (auto& batch : loader) {
            auto cast = accelerator.autocast();
            accelerator.backward((model->forward(batch.data).to(at::kFloat) - 1).pow(2).mean());
            optimizer.step();
            optimizer.zero_grad();
          }
        });
    EXPECT_TRUE(is_same_on_all(accelerator, model->weight));
    const at::Tensor scale = at::full({1}, accelerator.scaler()->growth_tracker(), at::kFloat);
    EXPECT_TRUE(is_same_on_all(accelerator, scale));
  });
  accelerated_ranks(2, {.non_finite = NonFinitePolicy::kStop}, [](Accelerator& accelerator) {
    EXPECT_THROW(accelerator.join_uneven_inputs([] {}), ConfigError);
  });
}

TEST(JoinUnevenInputs, AllBeginANewAccumulationGroupAfterwards) {
  const AcceleratorOptions options{
      .gradient_accumulation_plugin =
          GradientAccumulationPlugin{.num_steps = 2, .sync_with_dataloader = false}};
  accelerated_ranks(2, options, [](Accelerator& accelerator) {
    Linear net = one_by_one();
    auto [model, optimizer, loader] =
        accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.1}), shuffled_numbers(14));
    auto micro = [&, model = model, optimizer = optimizer](const at::Tensor& x) mutable {
      auto micro_step = accelerator.accumulate(model);
      accelerator.backward((model->forward(x) - 1).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    };
    accelerator.join_uneven_inputs({.even_batches = false}, [&, loader = loader]() mutable {
      for (auto& batch : loader) {
        micro(batch.data);
      }
    });
    EXPECT_TRUE(accelerator.sync_gradients());
    micro(at::ones({1, 1}));
    EXPECT_FALSE(accelerator.sync_gradients());
    micro(at::ones({1, 1}));
    EXPECT_TRUE(accelerator.sync_gradients());
    EXPECT_TRUE(is_same_on_all(accelerator, model->weight));
  });
}

}  // namespace
}  // namespace lockstep::internal
