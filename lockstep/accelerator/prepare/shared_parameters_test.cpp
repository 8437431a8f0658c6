// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const AcceleratorOptions kShared{.shared_parameters = true};

TEST(SharedParameters, RanksShareParametersButNotGradients) {
  accelerated_ranks(3, kShared, [](Accelerator& accelerator) {
    torch::nn::Linear net(4, 3);
    auto [model, optimizer] =
        accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.1}));
    accelerator.backward(
        model->forward(at::ones({2, 4}) * (1 + accelerator.process_index())).sum());
    const at::Tensor before = model->weight.detach().clone();
    optimizer.step();
    const at::Tensor after = model->weight.detach().clone();
    EXPECT_FALSE(at::equal(before, after));
    EXPECT_TRUE(
        at::equal(accelerator.gather(after.unsqueeze(0)), after.unsqueeze(0).expand({3, 3, 4})));
    if (accelerator.is_last_process()) {
      model->weight.data().fill_(5);
    }
    accelerator.wait_for_everyone();
    EXPECT_EQ(model->weight.mean().item<double>(), 5);
    accelerator.wait_for_everyone();
  });
}

/// How two models with an optimizer each are prepared.
enum class Prepared { kInOneCall, kOneAfterTheOther, kWithOneOptimizer };

torch::nn::Linear filled(double value) {
  torch::nn::Linear net(40, 30);
  const torch::NoGradGuard no_grad;
  net->weight.copy_(at::sin(at::arange(1200, at::kFloat) * value).reshape({30, 40}));
  net->bias.fill_(value);
  return net;
}

/// Two models, the second on what the first gives; alternating steps, as with a GAN.
std::vector<at::Tensor> trained_in_turn(Accelerator& accelerator, Prepared how) {
  torch::nn::Linear first = filled(0.3);
  torch::nn::Linear second = filled(0.7);
  std::vector<at::Tensor> both = first->parameters();
  for (const at::Tensor& parameter : second->parameters()) {
    both.push_back(parameter);
  }
  std::vector<Optimizer> optimizers;
  if (how == Prepared::kInOneCall) {
    auto [a, b, of_a, of_b] = accelerator.prepare(
        first,
        second,
        optim::AdamW(first->parameters(), {.lr = 0.1}),
        optim::SGD(second->parameters(), {.lr = 0.1, .momentum = 0.9}));
    optimizers = {of_a, of_b};
  } else if (how == Prepared::kOneAfterTheOther) {
    auto [a, of_a] = accelerator.prepare(first, optim::AdamW(first->parameters(), {.lr = 0.1}));
    auto [b, of_b] =
        accelerator.prepare(second, optim::SGD(second->parameters(), {.lr = 0.1, .momentum = 0.9}));
    optimizers = {of_a, of_b};
  } else {
    auto [a, b, of_both] = accelerator.prepare(first, second, optim::AdamW(both, {.lr = 0.1}));
    optimizers = {of_both};
  }
  for (int step = 0; step < 6; ++step) {
    const at::Tensor x = at::ones({2, 40}) * (1 + accelerator.process_index() + step);
    accelerator.backward(first->forward(x).square().mean());
    accelerator.backward(second->forward(x.cos()).square().mean());
    const size_t turn = static_cast<size_t>(step) % optimizers.size();
    optimizers[turn].step();
    for (Optimizer& optimizer : optimizers) {
      optimizer.zero_grad();
    }
  }
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : both) {
    weights.push_back(parameter.detach().clone());
  }
  accelerator.wait_for_everyone();
  return weights;
}

TEST(SharedParameters, OfTwoModelsTrainAsOwnOnes) {
  for (const Prepared how :
       {Prepared::kInOneCall, Prepared::kOneAfterTheOther, Prepared::kWithOneOptimizer}) {
    std::vector<std::vector<at::Tensor>> own(3);
    std::vector<std::vector<at::Tensor>> shared(3);
    const auto train = [how](const AcceleratorOptions& options, auto& weights) {
      accelerated_ranks(3, options, [&](Accelerator& accelerator) {
        weights[static_cast<size_t>(accelerator.process_index())] =
            trained_in_turn(accelerator, how);
      });
    };
    train({}, own);
    train(kShared, shared);
    for (size_t rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(shared[rank].size(), own[0].size());
      for (size_t k = 0; k < own[0].size(); ++k) {
        EXPECT_TRUE(at::equal(shared[rank][k], own[0][k])) << rank << " " << k;
      }
    }
  }
}

TEST(SharedParameters, ChangeNothingInAWorldOfOne) {
  Accelerator accelerator(kShared, WorldSpec{}, Group());
  torch::nn::Linear net(4, 3);
  const at::Tensor weight = net->weight.detach().clone();
  const at::Tensor bias = net->bias.detach().clone();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), {0.1}));
  accelerator.backward(model->forward(at::ones({2, 4})).sum());
  optimizer.step();
  // Each gradient is the number of samples: 2.
  EXPECT_TRUE(at::equal(net->weight.detach(), weight - 0.1 * at::full({3, 4}, 2.0F)));
  EXPECT_TRUE(at::equal(net->bias.detach(), bias - 0.1 * at::full({3}, 2.0F)));
}

TEST(SharedParameters, RefuseOtherOptimizersModelsAndWaysOfTraining) {
  accelerated_ranks(2, kShared, [](Accelerator& accelerator) {
    torch::nn::Linear net(4, 3);
    EXPECT_THAT(
        error_of([&] { accelerator.prepare(net, torch::optim::SGD(net->parameters(), {0.1})); }),
        HasSubstr("needs optimizers of lockstep::optim"));
    torch::nn::Linear other(4, 3);
    EXPECT_THAT(
        error_of([&] {
          std::ignore = accelerator.prepare(optim::AdamW(other->parameters(), {.lr = 0.1}));
        }),
        HasSubstr("a model that was not prepared"));
    EXPECT_THAT(
        error_of([&] { accelerator.join_uneven_inputs([] {}); }),
        HasSubstr("cannot be combined with shared_parameters"));
    EXPECT_THAT(
        error_of([&] { const LocalSgd local(accelerator, net, {.local_sgd_steps = 2}); }),
        HasSubstr("cannot be combined with shared_parameters"));
  });
}

}  // namespace
}  // namespace lockstep
