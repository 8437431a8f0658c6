// SPDX-License-Identifier: Apache-2.0
// Ranks on a GPU: what they compare with the gradients, sparse gradients, gathers with gradients.
// Threads that share one GPU, and processes: GpuJob needs a launcher that starts two ranks, for
// instance the two hosts of docs/gpu.md, which communicate over NCCL.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/DeviceAccelerator.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using torch::nn::Linear;

bool has_gpu() {
  return at::hasCUDA() && at::accelerator::deviceCount() > 0;
}

at::Tensor rows_on_gpu(Accelerator& accelerator) {
  return rows_of(accelerator).to(accelerator.device());
}

using Slip = std::function<void(Accelerator&, Optimizer&, Linear&)>;

/// Trains for 4 steps; rank 1 makes `slip` after the first backward. Returns the message.
std::string message_after(Accelerator& accelerator, const Slip& slip) {
  const std::string message = error_of<ConfigError>([&] {
    Linear net = two_by_two();
    auto [model, optimizer] =
        accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.9}));
    for (int step = 0; step < 4; ++step) {
      accelerator.backward(loss_of(net, rows_on_gpu(accelerator)));
      if (step == 0 && accelerator.process_index() == 1) {
        slip(accelerator, optimizer, net);
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_TRUE(is_same_on_all(accelerator, net->weight));
    accelerator.end_training();
  });
  Linear none = nullptr;
  accelerator.free_memory(none);
  return message;
}

void expect_differences_are_named(Accelerator& accelerator) {
  EXPECT_EQ(message_after(accelerator, [](auto&, auto&, auto&) {}), "no error");
  EXPECT_THAT(
      message_after(
          accelerator,
          [](auto&, Optimizer& optimizer, auto&) { optimizer.set_learning_rates({0.05}); }),
      HasSubstr("the learning rates of optimizer 0 must be equal on all ranks; rank 0 has [0.1], "
                "rank 1 has [0.05]"));
  EXPECT_THAT(
      message_after(accelerator, [](auto&, Optimizer& optimizer, auto&) { optimizer.step(); }),
      HasSubstr("the number of updates of optimizer 0"));
}

void expect_equal_parameters_are_required(Accelerator& accelerator) {
  Linear net = two_by_two();
  accelerator.prepare(net);
  if (accelerator.process_index() == 1) {
    const torch::NoGradGuard no_grad;
    net->weight.add_(1);
  }
  EXPECT_THAT(
      error_of<ConfigError>([&] { accelerator.end_training(); }),
      HasSubstr("[end_training] parameter weight must be equal on all ranks"));
  accelerator.free_memory(net);
}

void expect_sparse_gradients(Accelerator& accelerator) {
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  accelerator.prepare(net);
  const int rank = accelerator.process_index();
  const at::Tensor words = at::tensor({rank, rank + 1}, at::kLong).to(accelerator.device());
  accelerator.backward(net->forward(words).sum());
  at::Tensor expected = at::zeros({6, 2});
  expected[0].fill_(0.5);
  expected[1].fill_(1);
  expected[2].fill_(0.5);
  EXPECT_TRUE(net->weight.grad().is_sparse());
  EXPECT_TRUE(at::allclose(net->weight.grad().to_dense().cpu(), expected));
  accelerator.free_memory(net);
}

void expect_gather_keeps_gradients(Accelerator& accelerator) {
  at::Tensor mine =
      at::full({2}, accelerator.process_index() + 1.0, accelerator.device()).requires_grad_();
  const at::Tensor all = accelerator.gather(mine * 2);
  (all * at::arange(4, all.options())).sum().backward();
  const double first = 2.0 * accelerator.process_index();
  const at::Tensor expected = at::tensor({2 * first, 2 * (first + 1)}, at::kFloat);
  // Each rank's loss uses every element.
  EXPECT_TRUE(at::allclose(mine.grad().cpu(), expected * accelerator.num_processes()));
}

void check_all(Accelerator& accelerator) {
  EXPECT_FALSE(accelerator.device().is_cpu());
  expect_differences_are_named(accelerator);
  expect_equal_parameters_are_required(accelerator);
  expect_sparse_gradients(accelerator);
  expect_gather_keeps_gradients(accelerator);
}

TEST(GpuRanks, CompareTheirTraining) {
  if (!has_gpu()) {
    GTEST_SKIP() << "needs a CUDA device, and a libtorch built for it";
  }
  for (const int stage : {0, 2}) {
    AcceleratorOptions options{.save_when_preempted = false};
    if (stage > 0) {
      options.zero = ZeroPlugin{.stage = stage};
    }
    accelerated_ranks(2, options, [&](Accelerator& accelerator) {
      if (stage == 0) {
        check_all(accelerator);
      } else {
        expect_differences_are_named(accelerator);
      }
    });
  }
}

TEST(GpuJob, ComparesItsTraining) {
  const char* const world = std::getenv("WORLD_SIZE");
  if (!has_gpu() || world == nullptr || std::string(world) != "2") {
    GTEST_SKIP() << "needs a CUDA device, and a launcher of two ranks";
  }
  Accelerator accelerator({.save_when_preempted = false});
  check_all(accelerator);
  std::printf(
      "rank %d: transport %s\n", accelerator.process_index(), accelerator.group().transport_name());
}

}  // namespace
}  // namespace lockstep
