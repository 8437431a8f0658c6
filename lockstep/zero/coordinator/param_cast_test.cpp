// SPDX-License-Identifier: Apache-2.0
// Stage 3 under autocast: what is cast of parameters comes and goes as they do.
#include <cstdint>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/test_allocated_bytes.h"
#include "lockstep/zero/test_sharding.h"
#include "tests/nets.h"

namespace lockstep::zero {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kCastWidth = 128;
constexpr int64_t kUnit = kCastWidth * kCastWidth;

/// bf16 on the CPU.
class AutocastScope {
 public:
  AutocastScope() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
};

/// One bucket a layer with a cap of 1.
torch::nn::Sequential cast_layers(int64_t layers) {
  return test::sine_layers(
      layers,
      kCastWidth,
      {.scale = 1.0 / 8, .frequency = 12.9898, .phase_step = 1},
      /*bias=*/false);
}

std::shared_ptr<Sharding> cast_sharding(
    torch::nn::Sequential& net,
    const Group& group,
    ParamPlacement placement = ParamPlacement::kSharded) {
  return make_sharding(
      named(*net),
      group,
      {.cap_bytes = 1,
       .first_cap_bytes = 1,
       .placement = placement,
       .coordinator = {.max_live_elements = 2 * kUnit}});
}

at::Tensor loss_of(torch::nn::Sequential& net, int rank) {
  const AutocastScope autocast;
  const at::Tensor x = at::ones({2, kCastWidth}) * (rank + 1) / 8;
  return net->forward(x).to(at::kFloat).square().sum();
}

std::vector<at::Tensor> weights_after_steps(Group& group, ParamPlacement placement, bool frozen) {
  auto net = cast_layers(5);
  net->parameters()[3].set_requires_grad(!frozen);
  const auto sharding = cast_sharding(net, group, placement);
  for (int step = 0; step < 3; ++step) {
    run_backward(*sharding, loss_of(net, group.rank()));
    update(*sharding, 1);
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& weight : net->parameters()) {
    values.push_back(weight.detach().clone());
  }
  return values;
}

TEST(ParamCast, TrainingUnderAutocastIsBitExactWithStage2) {
  for (const bool frozen : {false, true}) {
    ranks(2, [&](Group group) {
      const auto expected = weights_after_steps(group, ParamPlacement::kReplicated, frozen);
      const auto weights = weights_after_steps(group, ParamPlacement::kSharded, frozen);
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(at::equal(weights[i], expected[i])) << i;
        EXPECT_EQ(at::equal(weights[i], cast_layers(5)->parameters()[i]), frozen && i == 3) << i;
      }
    });
  }
}

TEST(ParamCast, NoRankHasACopyOfTheModelIn16BitsBetweenForwardAndBackward) {
  constexpr int64_t kLayers = 16;
  constexpr int64_t kCopy = 2 * kLayers * kUnit;
  ranks(2, [](Group group) {
    const auto counted = std::make_shared<AllocatedBytes>();
    const c10::DebugInfoGuard watching(c10::DebugInfoKind::PROFILER_STATE, counted);
    auto net = cast_layers(kLayers);
    const auto sharding = cast_sharding(net, group);
    for (int step = 0; step < 2; ++step) {
      const int64_t before = counted->bytes();
      const at::Tensor loss = loss_of(net, group.rank());
      EXPECT_LT(counted->bytes() - before, kCopy / 2) << "two units, and what is cast of them";
      run_backward(*sharding, loss);
      update(*sharding, 0.1);
    }
  });
}

TEST(ParamCast, AnEvaluationWithinOneScopeKeepsNoCopyEither) {
  constexpr int64_t kLayers = 16;
  constexpr int64_t kCopy = 2 * kLayers * kUnit;
  for (const bool inference : {false, true}) {
    ranks(2, [&](Group group) {
      const auto counted = std::make_shared<AllocatedBytes>();
      const c10::DebugInfoGuard watching(c10::DebugInfoKind::PROFILER_STATE, counted);
      auto net = cast_layers(kLayers);
      at::Tensor expected;
      {
        const AutocastScope autocast;
        const torch::NoGradGuard no_grad;
        expected = net->forward(at::ones({2, kCastWidth}));
      }
      const auto sharding = cast_sharding(net, group);
      const torch::NoGradGuard no_grad;
      const c10::InferenceMode mode(inference);
      const int64_t before = counted->bytes();
      const AutocastScope autocast;
      for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(at::equal(net->forward(at::ones({2, kCastWidth})), expected)) << i;
        EXPECT_LT(counted->bytes() - before, kCopy / 2);
      }
    });
  }
}

TEST(ParamCast, AParameterThatWasWrittenToBeforeBackwardIsNotCastAgain) {
  ranks(2, [](Group group) {
    auto net = cast_layers(6);
    const auto sharding = cast_sharding(net, group);
    const at::Tensor loss = loss_of(net, group.rank());
    {
      const torch::NoGradGuard no_grad;
      net->parameters()[1].mul_(2);
    }
    EXPECT_THAT(
        [&] { run_backward(*sharding, loss); },
        ThrowsMessage<ConfigError>(HasSubstr("since autocast cast it")));
  });
}

TEST(ParamCast, AParameterThatTheProgramCastsIsAnOrdinaryTensor) {
  ranks(2, [](Group group) {
    auto net = cast_layers(3);
    const auto sharding = cast_sharding(net, group);
    const AutocastScope autocast;
    const torch::NoGradGuard no_grad;
    const at::Tensor own = net->parameters()[0].to(at::kBFloat16);
    for (const at::Tensor& weight : net->parameters()) {
      weight.sum();
    }
    EXPECT_NO_THROW(static_cast<void>(own.const_data_ptr()));
    sharding->coordinator()->wait_for_all();
  });
}

}  // namespace
}  // namespace lockstep::zero
