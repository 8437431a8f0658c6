// SPDX-License-Identifier: Apache-2.0
// Where the inputs of checkpoints lie, on a device that is not the CPU: see test_device.h.
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/device/test_device.h"
#include "lockstep/zero/activation/activation_checkpoint.h"
#include "lockstep/zero/activation/activation_checkpointing.h"

namespace lockstep {
namespace {

constexpr int64_t kLayers = 12;
constexpr int64_t kRows = 512;
constexpr int64_t kWidth = 32;
constexpr int64_t kBytes = kRows * kWidth * 4;  ///< Of one input.

using Layers = std::vector<torch::nn::Linear>;

Layers layers_on(at::Device device) {
  torch::manual_seed(1);
  Layers layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers.emplace_back(kWidth, kWidth);
    layers.back()->to(device);
  }
  return layers;
}

at::Tensor loss_of(const Layers& layers) {
  const at::Device device = layers.front()->weight.device();
  at::Tensor x = at::sin(at::arange(kRows * kWidth, at::kFloat)).reshape({kRows, kWidth});
  x = x.to(device);
  for (const torch::nn::Linear& layer : layers) {
    x = activation_checkpoint(
        [layer](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
          return {at::tanh(torch::nn::Linear(layer)->forward(in[0]))};
        },
        {x},
        layer->parameters())[0];
  }
  return x.mean();  // Which keeps nothing of x.
}

std::vector<at::Tensor> gradients_of(const Layers& layers) {
  std::vector<at::Tensor> gradients;
  for (const torch::nn::Linear& layer : layers) {
    for (const at::Tensor& parameter : layer->parameters()) {
      gradients.push_back(parameter.grad().cpu());
    }
  }
  return gradients;
}

/// What one step on the device needs there and gives.
struct MeasuredStep {
  int64_t bytes_between = 0;  ///< Of the device, after forward and before backward.
  int64_t waits = 0;
  std::vector<at::Tensor> gradients;
};

MeasuredStep step_with(const std::shared_ptr<ActivationCheckpointing>& settings, int steps = 1) {
  const Layers layers = layers_on(test_device());
  const ActivationCheckpointing::Scope scope(settings);
  MeasuredStep step;
  for (int i = 0; i < steps; ++i) {
    for (const torch::nn::Linear& layer : layers) {
      torch::nn::Linear(layer)->zero_grad();
    }
    const int64_t before = test_device_bytes();
    const int64_t waits = test_device_reads();
    const at::Tensor loss = loss_of(layers);
    step.bytes_between = test_device_bytes() - before;
    loss.backward();
    step.waits = test_device_reads() - waits;
  }
  step.gradients = gradients_of(layers);
  return step;
}

std::shared_ptr<ActivationCheckpointing> settings_of(
    const ActivationCheckpointingOptions& options) {
  return std::make_shared<ActivationCheckpointing>(options);
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  }
}

std::vector<at::Tensor> on_the_cpu() {
  test_device();
  const Layers layers = layers_on(at::kCPU);
  loss_of(layers).backward();
  return gradients_of(layers);
}

TEST(DeviceCheckpointing, KeepsInputsOnTheDeviceByDefault) {
  const auto expected = on_the_cpu();
  const MeasuredStep plain = step_with(nullptr);
  EXPECT_GE(plain.bytes_between, kLayers * kBytes);
  expect_equal(plain.gradients, expected);
}

TEST(DeviceCheckpointing, KeepsNothingOnTheDeviceIfInputsAreOnTheHost) {
  const auto expected = on_the_cpu();
  for (const bool in_one_piece : {false, true}) {
    const MeasuredStep step = step_with(
        settings_of(
            {.cpu_checkpointing = true,
             .contiguous_memory_optimization = in_one_piece,
             .number_checkpoints = kLayers}),
        3);
    EXPECT_LT(step.bytes_between, 100) << "the loss";
    expect_equal(step.gradients, expected);
  }
}

TEST(DeviceCheckpointing, WaitsForAsynchronousCopies) {
  const auto expected = on_the_cpu();
  hold_test_device_streams(true);
  const MeasuredStep step = step_with(settings_of({.cpu_checkpointing = true}), 2);
  hold_test_device_streams(false);
  expect_equal(step.gradients, expected);
}

TEST(DeviceCheckpointing, ContiguousMemoryIsOnTheDeviceAndIsReused) {
  const auto expected = on_the_cpu();
  const auto settings =
      settings_of({.contiguous_memory_optimization = true, .number_checkpoints = 2 * kLayers});
  const MeasuredStep first = step_with(settings);
  EXPECT_GE(first.bytes_between, 2 * kLayers * kBytes);
  EXPECT_LT(first.bytes_between, 2 * kLayers * kBytes + 100);
  expect_equal(first.gradients, expected);
  const MeasuredStep second = step_with(settings);
  EXPECT_LT(second.bytes_between, 100) << "it is there already";
  expect_equal(second.gradients, expected);
}

TEST(DeviceCheckpointing, ADeviceWithRoomForOneLayerIsEnoughWithInputsOnTheHost) {
  test_device();
  const auto fits = [](const std::shared_ptr<ActivationCheckpointing>& settings) {
    const Layers layers = layers_on(test_device());
    // Gradients, and what computing one layer needs, forward and backward.
    const int64_t gradients = kLayers * (kWidth + 1) * kWidth * 4;
    limit_test_device(test_device_bytes() + gradients + 8 * kBytes);
    const ActivationCheckpointing::Scope scope(settings);
    bool fitted = true;
    try {
      loss_of(layers).backward();
    } catch (const c10::OutOfMemoryError&) {
      fitted = false;
    }
    limit_test_device(std::nullopt);
    return fitted;
  };
  EXPECT_TRUE(fits(settings_of({.cpu_checkpointing = true})));
  EXPECT_FALSE(fits(nullptr));
}

TEST(DeviceCheckpointing, SynchronizesTheDeviceAroundCheckpointsOnRequest) {
  test_device();
  const int64_t plain = step_with(nullptr).waits;
  EXPECT_EQ(
      step_with(settings_of({.synchronize_checkpoint_boundary = true})).waits, plain + 4 * kLayers);
  EXPECT_EQ(step_with(settings_of({.profile = true})).waits, plain + 4 * kLayers);
}

}  // namespace
}  // namespace lockstep
