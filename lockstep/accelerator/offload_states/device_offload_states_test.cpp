// SPDX-License-Identifier: Apache-2.0
// offload_states where there is a device to take memory from.
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/device/test_device.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kWidth = 256;
constexpr int64_t kElements = kWidth * (kWidth + 1);

/// A process that trains a layer on the device; in 16 bits ZeRO has masters in one process, too.
struct Training {
  explicit Training(
      std::optional<ZeroPlugin> zero = std::nullopt, at::ScalarType dtype = at::kFloat)
      : accelerator({.zero = zero}) {
    test_device();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(
          torch::sin(torch::arange(parameter.numel(), torch::kFloat)).reshape(parameter.sizes()));
    }
    net->to(dtype);
    optimizer =
        std::get<1>(accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01})));
  }
  void backward() {
    const at::Tensor x = at::ones({2, kWidth}, accelerator.device()).to(net->weight.scalar_type());
    accelerator.backward(net->forward(x).square().mean());
  }
  void step() {
    backward();
    optimizer.step();
    optimizer.zero_grad();
  }

  Accelerator accelerator;
  torch::nn::Linear net{kWidth, kWidth};
  Optimizer optimizer;
};

TEST(Device, OffloadedStatesFreeTheirMemoryAndAreReloadedUnchanged) {
  test_device();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::optional<ZeroPlugin> zero =
        dtype == at::kFloat ? std::nullopt : std::optional(ZeroPlugin{.stage = 2});
    Training plain(zero, dtype);
    Training moved(zero, dtype);
    for (Training* run : {&plain, &moved}) {
      run->step();
    }
    const int64_t before = test_device_bytes();
    moved.backward();
    moved.accelerator.offload_states({.include = {{OffloadStateType::kOptimStates}}});
    const auto short_of = [&] { return before - test_device_bytes(); };
    // Two moments in the width of what is updated, less the gradients that backward made.
    const int64_t moments = 2 * 4 * kElements;
    EXPECT_GT(short_of(), moments / 3);
    moved.accelerator.offload_states();
    const int64_t width = dtype == at::kFloat ? 4 : 2 + 4;  // With masters.
    EXPECT_GE(short_of(), moments + width * kElements);
    EXPECT_THAT(
        [&] { moved.net->weight.detach().sum(); }, ThrowsMessage<c10::Error>(HasSubstr("reload")));
    EXPECT_THROW(moved.optimizer.step(), ConfigError);
    moved.accelerator.reload_states();
    moved.optimizer.step();
    moved.optimizer.zero_grad();
    plain.step();
    EXPECT_EQ(test_device_bytes(), before);
    EXPECT_TRUE(at::equal(moved.net->weight.detach().cpu(), plain.net->weight.detach().cpu()));
  }
}

TEST(Device, AModelOutlivesAnAcceleratorThatWasFreedWhileStatesWereAway) {
  test_device();
  Training run;
  run.step();
  const at::Tensor before = run.net->weight.detach().cpu();
  run.accelerator.offload_states();
  run.accelerator.free_memory();
  EXPECT_TRUE(at::equal(run.net->weight.detach().cpu(), before));
}

TEST(Device, StatesThatGraphsOfAnUpdateKnowStayWhereTheyAre) {
  test_device();
  Accelerator accelerator;
  torch::nn::Linear net(4, 4);
  accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01, .capturable = true}));
  EXPECT_THAT(
      [&] { accelerator.offload_states(); },
      ThrowsMessage<ConfigError>(HasSubstr("capturable true")));
  EXPECT_NO_THROW(net->weight.detach().sum());
}

TEST(Device, TheStatesOfStage3AreOffloadedAndReloadedOnEveryRank) {
  test_device();
  std::vector<std::vector<double>> losses(2);
  for (const bool moves : {false, true}) {
    shm_ranks(2, [&](Group group) {
      WorldSpec world;
      world.rank = world.local_rank = group.rank();
      world.size = world.local_size = group.size();
      Accelerator accelerator({.zero = ZeroPlugin{.stage = 3}}, world, std::move(group));
      torch::nn::Linear net(kWidth, kWidth);
      {
        const torch::NoGradGuard no_grad;
        net->weight.copy_(
            at::sin(at::arange(kWidth * kWidth, at::kFloat)).reshape({kWidth, kWidth}));
        net->bias.zero_();
      }
      auto [model, optimizer] =
          accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 0.01}));
      const at::Tensor x = at::ones({2, kWidth}, accelerator.device());
      for (int step = 0; step < 4; ++step) {
        const at::Tensor loss = model->forward(x).square().mean();
        accelerator.backward(loss);
        if (moves) {
          accelerator.offload_states();
          accelerator.wait_for_everyone();
          accelerator.reload_states();
        }
        optimizer.step();
        optimizer.zero_grad();
        if (accelerator.is_main_process()) {
          losses[moves ? 1 : 0].push_back(loss.item<double>());
        }
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace
}  // namespace lockstep
