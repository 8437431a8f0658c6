// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/differentiable.h"

#include <functional>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep::internal {
namespace {

/// Returns a loss of all processes' outputs.
using Loss = std::function<at::Tensor(Accelerator&, const at::Tensor& output)>;

/// Trains for two updates on 6 rows, and returns the weights.
at::Tensor trained_weights(int size, int stage, const Loss& loss) {
  at::Tensor weights;
  AcceleratorOptions options;
  if (stage > 0) {
    options.zero = ZeroPlugin{.stage = stage};
  }
  accelerated_ranks(size, options, [&](Accelerator& accelerator) {
    torch::nn::Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.1}));
    const at::Tensor rows = at::sin(at::arange(12, at::kFloat)).reshape({6, 2});
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(
          loss(accelerator, net->forward(accelerator.split_between_processes(rows))));
      optimizer.step();
      optimizer.zero_grad();
    }
    const at::Tensor mine = net->weight.detach().clone();
    if (accelerator.is_main_process()) {
      weights = mine;
    }
    accelerator.end_training();
  });
  return weights;
}

TEST(Differentiable, ALossOfGatheredOrReducedOutputsTrainsAsInOneProcess) {
  const std::vector<Loss> losses = {
      [](Accelerator& a, const at::Tensor& y) {  // Contrastive: each row with all others.
        const at::Tensor all = a.gather(y);
        return all.matmul(all.t()).softmax(1).square().mean();
      },
      [](Accelerator& a, const at::Tensor& y) { return a.reduce(y.square().sum()); },
      [](Accelerator& a, const at::Tensor& y) {
        return a.reduce(y.square().mean(), ReduceOp::kAvg).sqrt();
      },
      [](Accelerator& a, const at::Tensor& y) {
        return a.reduce(y.square().max(), ReduceOp::kMax);
      },
      [](Accelerator& a, const at::Tensor& y) {
        return a.gather(y.square().sum()).sum().log();  // A 0-d tensor.
      }};
  for (size_t i = 0; i < losses.size(); ++i) {
    const at::Tensor expected = trained_weights(1, 0, losses[i]);
    for (const int stage : {0, 2, 3}) {
      for (const int size : {2, 3}) {
        EXPECT_TRUE(at::allclose(trained_weights(size, stage, losses[i]), expected, 1e-5, 1e-6))
            << "loss " << i << ", " << size << " ranks, stage " << stage;
      }
    }
  }
}

TEST(Differentiable, ReduceSharesTheGradientOfAMaximumThatSeveralRanksHave) {
  accelerated_ranks(3, {}, [](Accelerator& accelerator) {
    const at::Tensor x = at::full({1}, accelerator.process_index() == 0 ? 1.0 : 2.0);
    x.requires_grad_();
    accelerator.reduce(x, ReduceOp::kMax).sum().backward();
    EXPECT_EQ(x.grad().item<double>(), accelerator.process_index() == 0 ? 0 : 1.5);
  });
}

TEST(Differentiable, AProductIsRefusedForAnyNumberOfRanks) {
  for (const int size : {1, 2}) {
    accelerated_ranks(size, {}, [](Accelerator& accelerator) {
      const at::Tensor x = at::ones({1}).requires_grad_();
      EXPECT_THROW(std::ignore = accelerator.reduce(x, ReduceOp::kProduct), ConfigError);
      EXPECT_EQ(accelerator.reduce(x.detach(), ReduceOp::kProduct).item<double>(), 1);
    });
  }
}

TEST(Differentiable, NothingIsRecordedWithoutGradients) {
  for (const int size : {1, 2}) {
    accelerated_ranks(size, {}, [](Accelerator& accelerator) {
      const at::Tensor x = at::ones({2}).requires_grad_();
      EXPECT_FALSE(accelerator.gather_for_metrics(x).requires_grad());
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(accelerator.gather(x * 2).requires_grad());
      EXPECT_FALSE(accelerator.reduce(x * 2).requires_grad());
    });
  }
}

}  // namespace
}  // namespace lockstep::internal
