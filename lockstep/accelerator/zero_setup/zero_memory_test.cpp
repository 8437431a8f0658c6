// SPDX-License-Identifier: Apache-2.0
// What each stage of ZeRO takes within a step, and leaves on a rank, counted by torch's allocator.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/zero/test_allocated_bytes.h"

namespace lockstep {
namespace {

/// Adam's two moments count as state; there is no other copy of fp32 parameters, and one in fp32 of
/// this rank's part of those in 16 bits.
void expect_formulas(at::ScalarType dtype) {
  constexpr int kLayers = 24;
  constexpr int64_t kWidth = 256;
  constexpr double kElements = 1.0 * kLayers * kWidth * kWidth;
  const bool masters = dtype != at::kFloat;
  const double parameters = kElements * static_cast<double>(c10::elementSize(dtype));
  const double unit = parameters / kLayers;
  for (const int world : {2, 4}) {
    for (const int stage : {1, 2, 3}) {
      const ZeroPlugin plugin{
          .stage = stage,
          .bucket_cap_bytes = static_cast<int64_t>(unit),
          .stage3_max_live_parameters = kWidth * kWidth * 2};
      accelerated_ranks(world, {.zero = plugin}, [&](Accelerator& accelerator) {
        const auto counted = std::make_shared<AllocatedBytes>();
        const c10::DebugInfoGuard watching(c10::DebugInfoKind::PROFILER_STATE, counted);
        torch::nn::Sequential net;
        for (int i = 0; i < kLayers; ++i) {
          net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
        }
        net->to(dtype);
        auto [model, optimizer] =
            accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 1e-3}));
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          accelerator.backward(model->forward(at::ones({1, kWidth}, dtype)).square().sum());
          optimizer.step();
        }
        // Two moments, the gradients, and this rank's part of what is updated where it is not the
        // parameters themselves.
        const double own = (masters || stage == 3 ? 4 : 3) * 4 * kElements / world;
        const double ideal = own + (stage == 3 ? 0 : parameters);
        const auto bytes = static_cast<double>(counted->bytes());
        EXPECT_GE(bytes, ideal) << "stage " << stage << " of " << world;
        // In stage 3 the memory of units stays for the next ones.
        const double live = stage == 3 ? 3 * unit : 0;
        EXPECT_LE(bytes, ideal * 1.05 + live) << "stage " << stage << " of " << world;
      });
    }
  }
}

TEST(ZeroMemory, OfParametersGradientsAndStateFollowsTheFormulas) {
  expect_formulas(at::kFloat);
}

TEST(ZeroMemory, Of16BitParametersIsThemAndMastersOfThisRanksShard) {
  expect_formulas(at::kBFloat16);
}

/// Besides what stays, in fp32: the gradients that backward has just given and those of the buckets
/// under way, in stage 3 the units that are whole, and a little for what layers give each other.
TEST(ZeroMemory, WithinAStepIsMoreByAFewBucketsOnly) {
  constexpr int kLayers = 32;
  constexpr int64_t kWidth = 256;
  constexpr int64_t kUnit = 4 * kWidth * kWidth;
  constexpr int64_t kUnderWay = 3;
  constexpr int64_t kJustGiven = 2;  // Autograd's, and the copy that it makes of a transposed one.
  constexpr int64_t kLive = 2;
  constexpr int64_t kHeld = 1;  // By an operation, though it is not live any more.
  for (const int world : {2, 4}) {
    for (const int stage : {1, 2, 3}) {
      const ZeroPlugin plugin{
          .stage = stage,
          .bucket_cap_bytes = kUnit,
          .stage3_max_live_parameters = kWidth * kWidth * kLive};
      accelerated_ranks(world, {.zero = plugin}, [&](Accelerator& accelerator) {
        const auto counted = std::make_shared<AllocatedBytes>();
        const c10::DebugInfoGuard watching(c10::DebugInfoKind::PROFILER_STATE, counted);
        torch::nn::Sequential net;
        for (int i = 0; i < kLayers; ++i) {
          net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
        }
        auto [model, optimizer] =
            accelerator.prepare(net, optim::AdamW(net->parameters(), {.lr = 1e-3}));
        for (int step = 0; step < 4; ++step) {
          counted->take_most();
          optimizer.zero_grad();
          accelerator.backward(model->forward(at::ones({1, kWidth})).square().sum());
          optimizer.step();
          const int64_t most = counted->bytes() + counted->take_most();
          // Parameters, gradients and two moments of this rank's part.
          const int64_t own = (stage == 3 ? 4 : 3) * kLayers * kUnit / world;
          const int64_t stays = own + (stage == 3 ? 0 : kLayers * kUnit);
          const int64_t comes = kUnderWay + kJustGiven + (stage == 3 ? kLive + kHeld : 0);
          EXPECT_LE(most, stays + comes * kUnit + kUnit / 2)
              << "stage " << stage << " of " << world << ", step " << step;
        }
      });
    }
  }
}

TEST(ZeroMemory, AFullStateDictTakesMemoryForAFewTensorsOnEachRank) {
  constexpr int kLayers = 24;
  constexpr int64_t kWidth = 256;
  constexpr int64_t kUnit = 4 * kWidth * kWidth;
  const TestFolder folder;
  const ZeroPlugin plugin{
      .stage = 3,
      .bucket_cap_bytes = kUnit,
      .stage3_max_live_parameters = kWidth * kWidth * 2,
      .state_dict_type = StateDictType::kFullStateDict};
  accelerated_ranks(3, {.zero = plugin}, [&](Accelerator& accelerator) {
    const auto counted = std::make_shared<AllocatedBytes>();
    const c10::DebugInfoGuard watching(c10::DebugInfoKind::PROFILER_STATE, counted);
    torch::nn::Sequential net;
    for (int i = 0; i < kLayers; ++i) {
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
    accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 1e-3}));
    counted->take_most();
    accelerator.save_state(folder.path() / "full");
    EXPECT_LE(counted->take_most(), 5 * kUnit) << "of " << kLayers;
  });
  EXPECT_GE(
      std::filesystem::file_size(folder.path() / "full" / "model.safetensors"), kLayers * kUnit);
}

}  // namespace
}  // namespace lockstep
