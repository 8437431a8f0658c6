// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/activation/activation_checkpointing.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/zero/activation/activation_checkpoint.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kLayers = 4;

/// Layers whose inputs are [64, 64], 16 KiB.
std::vector<torch::nn::Linear> layers_of_tanh() {
  torch::manual_seed(1);
  std::vector<torch::nn::Linear> layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers.emplace_back(64, 64);
  }
  return layers;
}

at::Tensor forward(const std::vector<torch::nn::Linear>& layers, at::Tensor x) {
  for (const torch::nn::Linear& layer : layers) {
    x = activation_checkpoint(
        [layer](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
          return {at::tanh(torch::nn::Linear(layer)->forward(in[0]))};
        },
        {x},
        layer->parameters())[0];
  }
  return x.square().mean();
}

at::Tensor batch(int64_t rows = 64) {
  return at::sin(at::arange(rows * 64, at::kFloat)).reshape({rows, 64});
}

std::vector<at::Tensor> gradients_of(const std::vector<torch::nn::Linear>& layers) {
  std::vector<at::Tensor> gradients;
  for (const torch::nn::Linear& layer : layers) {
    for (const at::Tensor& parameter : layer->parameters()) {
      gradients.push_back(parameter.grad().clone());
    }
  }
  return gradients;
}

std::vector<at::Tensor> plain_gradients() {
  const auto layers = layers_of_tanh();
  forward(layers, batch()).backward();
  return gradients_of(layers);
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  }
}

std::shared_ptr<ActivationCheckpointing> contiguous(int64_t count) {
  return std::make_shared<ActivationCheckpointing>(ActivationCheckpointingOptions{
      .contiguous_memory_optimization = true, .number_checkpoints = count});
}

TEST(ActivationCheckpointing, IsBitExactWithEveryOption) {
  const auto expected = plain_gradients();
  for (const bool host : {false, true}) {
    for (const bool in_one_piece : {false, true}) {
      const auto settings =
          std::make_shared<ActivationCheckpointing>(ActivationCheckpointingOptions{
              .cpu_checkpointing = host,
              .contiguous_memory_optimization = in_one_piece,
              .number_checkpoints = kLayers,
              .synchronize_checkpoint_boundary = true,
              .profile = true});
      const auto layers = layers_of_tanh();
      const ActivationCheckpointing::Scope scope(settings);
      for (int step = 0; step < 3; ++step) {
        for (const torch::nn::Linear& layer : layers) {
          torch::nn::Linear(layer)->zero_grad();
        }
        forward(layers, batch()).backward();
        expect_equal(gradients_of(layers), expected);
      }
    }
  }
}

TEST(ActivationCheckpointing, KeepsTheStridesByWhichKernelsChooseTheOrderOfSums) {
  const auto strides_seen = [](const at::Tensor& x) {
    std::vector<std::vector<int64_t>> seen;
    activation_checkpoint(
        [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
          seen.push_back(in[0].strides().vec());
          EXPECT_TRUE(at::equal(in[0], x));
          return {in[0] * 2};
        },
        {x},
        {})[0]
        .sum()
        .backward();
    return seen;
  };
  const ActivationCheckpointing::Scope scope(contiguous(1));
  const at::Tensor whole = at::rand({2, 6, 4, 4}).requires_grad_();
  for (const at::Tensor& x :
       {whole.transpose(0, 1),
        whole.contiguous(at::MemoryFormat::ChannelsLast),
        whole.narrow(1, 2, 3),
        whole.narrow(1, 0, 1).expand({2, 6, 4, 4}),
        whole.select(3, 2)}) {
    const auto seen = strides_seen(x);
    ASSERT_EQ(seen.size(), 2U);
    EXPECT_EQ(seen[0], seen[1]);
  }
}

TEST(ActivationCheckpointing, OneCheckpointTooManyIsAnErrorThatNamesTheNumber) {
  const auto layers = layers_of_tanh();
  const ActivationCheckpointing::Scope scope(contiguous(3));
  EXPECT_THAT(
      [&] { forward(layers, batch()); },
      ThrowsMessage<ConfigError>(HasSubstr(
          "number_checkpoints is too small; got checkpoint 4 while 3 wait for their backward")));
  // What the forward that failed had taken is free again.
  const std::vector<torch::nn::Linear> three(layers.begin(), layers.begin() + 3);
  forward(three, batch()).backward();
  forward(three, batch()).backward();
}

TEST(ActivationCheckpointing, ABufferIsReusedAfterItsBackwardOrWithoutItsGraph) {
  const auto layers = layers_of_tanh();
  const ActivationCheckpointing::Scope scope(contiguous(2 * kLayers));
  {
    const at::Tensor first = forward(layers, batch());
    const at::Tensor second = forward(layers, batch() * 2);
    EXPECT_THROW(forward(layers, batch()), ConfigError);
    first.backward();
    forward(layers, batch());
    second.backward();
  }
  forward(layers, batch());
  forward(layers, batch()).backward();
}

TEST(ActivationCheckpointing, AGraphThatIsKeptGivesTheSameGradientsAgain) {
  const auto expected = plain_gradients();
  const auto layers = layers_of_tanh();
  const ActivationCheckpointing::Scope scope(contiguous(2 * kLayers));
  const at::Tensor loss = forward(layers, batch());
  loss.backward({}, /*retain_graph=*/true);
  forward(layers, batch() * 3);
  for (const torch::nn::Linear& layer : layers) {
    torch::nn::Linear(layer)->zero_grad();
  }
  loss.backward();
  expect_equal(gradients_of(layers), expected);
}

TEST(ActivationCheckpointing, SmallerInputsFitAndLargerOnesMakeRoomBetweenSteps) {
  const auto layers = layers_of_tanh();
  const ActivationCheckpointing::Scope scope(contiguous(kLayers));
  for (const int64_t rows : {32, 8, 64}) {
    forward(layers, batch(rows)).backward();
  }
  const std::vector<torch::nn::Linear> one(layers.begin(), layers.begin() + 1);
  const ActivationCheckpointing::Scope inner(contiguous(2));
  const at::Tensor small = forward(one, batch(8));
  EXPECT_THAT(
      [&] { forward(one, batch(64)); },
      ThrowsMessage<ConfigError>(
          HasSubstr("got an input of 16384 bytes, expected at most the 2048")));
}

TEST(ActivationCheckpointing, ContiguousMemoryWithoutANumberIsAnError) {
  EXPECT_THAT(
      [] { ActivationCheckpointing({.contiguous_memory_optimization = true}); },
      ThrowsMessage<ConfigError>(HasSubstr("needs number_checkpoints")));
}

TEST(ActivationCheckpointing, EndsWithItsScopeAndIgnoresNestedCheckpoints) {
  const auto settings = contiguous(1);
  const at::Tensor x = at::rand({8}).requires_grad_();
  const auto square = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {in[0].square()};
  };
  const auto twice = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return activation_checkpoint(square, activation_checkpoint(square, in, {}), {});
  };
  {
    const ActivationCheckpointing::Scope scope(settings);
    activation_checkpoint(twice, {x * 1}, {})[0].sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), 4 * x.detach().pow(3)));
    const ActivationCheckpointing::Scope none(nullptr);
    EXPECT_EQ(ActivationCheckpointing::current(), nullptr);
    activation_checkpoint(square, {activation_checkpoint(square, {x * 1}, {})[0] * 1}, {});
  }
  EXPECT_EQ(ActivationCheckpointing::current(), nullptr);
}

TEST(ActivationCheckpointing, TakeTimesReturnsAndResetsTheSums) {
  const auto settings =
      std::make_shared<ActivationCheckpointing>(ActivationCheckpointingOptions{.profile = true});
  const ActivationCheckpointing::Scope scope(settings);
  // Each run of the body is within an interval that is timed, so the load does not matter.
  std::vector<double> runs_ms;
  const auto timed_square = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const auto start = std::chrono::steady_clock::now();
    at::Tensor result = in[0].square();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    runs_ms.push_back(took.count());
    return {result};
  };
  at::Tensor x = batch().requires_grad_();
  for (int64_t i = 0; i < kLayers; ++i) {
    x = activation_checkpoint(timed_square, {x}, {})[0];
  }
  x.sum().backward();
  const CheckpointTimes times = settings->take_times();
  EXPECT_EQ(times.checkpoints, kLayers);
  ASSERT_EQ(runs_ms.size(), 2 * kLayers);
  const auto backward_begin = runs_ms.begin() + kLayers;
  EXPECT_GE(times.forward_ms, std::accumulate(runs_ms.begin(), backward_begin, 0.0));
  EXPECT_GE(times.backward_ms, std::accumulate(backward_begin, runs_ms.end(), 0.0));
  EXPECT_EQ(settings->take_times().checkpoints, 0);
}

/// libtorch's own, with the sizes it is asked for.
class SizesOfAllocations final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    sizes.push_back(bytes);
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  std::vector<size_t> sizes;
};

TEST(ActivationCheckpointing, ContiguousMemoryIsAllocatedOnceForAllCheckpoints) {
  const auto layers = layers_of_tanh();
  const ActivationCheckpointing::Scope scope(contiguous(100));
  constexpr size_t kPiece = size_t{100} * 64 * 64 * 4;
  c10::Allocator* const before = c10::GetCPUAllocator();
  SizesOfAllocations counting;
  c10::SetCPUAllocator(&counting, /*priority=*/100);
  for (int step = 0; step < 3; ++step) {
    forward(layers, batch()).backward();
    EXPECT_EQ(std::ranges::count(counting.sizes, kPiece), 1);
  }
  c10::SetCPUAllocator(before, /*priority=*/100);
}

}  // namespace
}  // namespace lockstep
