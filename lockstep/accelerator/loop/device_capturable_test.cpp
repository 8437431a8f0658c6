// SPDX-License-Identifier: Apache-2.0
// Prepared optimizers whose updates can be captured, on the test device.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/comm/device/test_device.h"
#include "lockstep/comm/device/test_device_graph.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/schedule/decay_schedules.h"

#if LOCKSTEP_TEST_GRAPHS
#include <ATen/accelerator/Graph.h>
#endif

namespace lockstep {
namespace {

at::Tensor numbers() {
  return at::sin(at::arange(160, at::kFloat)).reshape({40, 4});
}

torch::nn::Linear linear() {
  torch::nn::Linear net(4, 4);
  const torch::NoGradGuard no_grad;
  net->weight.copy_(numbers().slice(0, 0, 4));
  net->bias.fill_(0.5);
  return net;
}

TEST(Device, AScheduleSetsTheRateOfACapturableOptimizerThere) {
  test_device();
  std::vector<std::vector<at::Tensor>> weights;
  for (const bool capturable : {false, true}) {
    Accelerator accelerator;
    torch::nn::Linear net = linear();
    auto [model, optimizer, schedule] = accelerator.prepare(
        net,
        optim::SGD(net->parameters(), {.lr = 1, .capturable = capturable}),
        schedule::step_decay({.step_size = 1, .gamma = 0.5}));
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = numbers().to(accelerator.device());
      accelerator.backward(model->forward(x).square().mean());
      const int64_t reads = test_device_reads();
      optimizer.step();
      schedule.step();
      EXPECT_EQ(test_device_reads(), reads);
      optimizer.zero_grad();
    }
    weights.emplace_back();
    for (const at::Tensor& parameter : model->parameters()) {
      weights.back().push_back(parameter.detach().cpu());
    }
  }
  for (size_t k = 0; k < weights[0].size(); ++k) {
    EXPECT_TRUE(at::equal(weights[0][k], weights[1][k])) << k;
  }
}

#if LOCKSTEP_TEST_GRAPHS

TEST(Device, APreparedOptimizersStepCanBeCaptured) {
  test_device();
  std::vector<std::vector<at::Tensor>> weights;
  for (const bool captured : {false, true}) {
    Accelerator accelerator;
    torch::nn::Linear net = linear();
    auto [model, optimizer] = accelerator.prepare(
        net, optim::AdamW(net->parameters(), {.lr = 0.0078125, .capturable = true}));
    accelerator.backward(model->forward(numbers().to(accelerator.device())).square().mean());
    optimizer.step();
    at::accelerator::Graph graph;
    if (captured) {
      graph.capture_begin();
      optimizer.step();
      graph.capture_end();
    }
    for (int step = 0; step < 3; ++step) {
      if (captured) {
        graph.replay();
      } else {
        optimizer.step();
      }
    }
    weights.emplace_back();
    for (const at::Tensor& parameter : model->parameters()) {
      weights.back().push_back(parameter.detach().cpu());
    }
  }
  for (size_t k = 0; k < weights[0].size(); ++k) {
    EXPECT_TRUE(at::equal(weights[0][k], weights[1][k])) << k;
  }
}

#endif

}  // namespace
}  // namespace lockstep
