// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/update_in_fp32.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/thread/ranks.h"
#include "lockstep/flat/shard_bounds.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/lamb.h"

namespace lockstep::optim {
namespace {

constexpr int64_t kNumel = 1001;

at::Tensor some(double phase) {
  return at::sin(at::arange(kNumel, at::kFloat) + phase);
}

/// A step on float32 copies, whose results are rounded: what a 16-bit update shall be.
template <typename Optimizer>
struct ByHand {
  ByHand(at::ScalarType parameter, at::ScalarType state)
      : value(some(0).to(parameter)),
        fields({at::zeros({kNumel}, state), at::zeros({kNumel}, state)}) {}
  void step(const at::Tensor& gradient) {
    const at::Tensor wide = value.to(at::kFloat).set_requires_grad(true);
    Optimizer optimizer({wide}, {.lr = 0.01});
    optimizer.set_state(
        wide,
        {.step = steps++,
         .fields = {fields[0].to(at::kFloat), fields[1].to(at::kFloat), at::Tensor()}});
    wide.mutable_grad() = gradient.to(at::kFloat);
    optimizer.step();
    value.copy_(wide.detach());
    for (size_t i = 0; i < fields.size(); ++i) {
      fields[i].copy_(optimizer.state_of(wide).fields[i]);
    }
  }
  at::Tensor value;
  std::vector<at::Tensor> fields;
  int64_t steps = 0;
};

TEST(UpdateInFp32, Rounds16BitSlicesAndTheirStateOnceAStep) {
  const c10::AutoGradMode no_grad(false);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const bool fp32_state : {false, true}) {
      const at::Tensor buffer = some(0).to(dtype);
      const at::Tensor first = buffer.narrow(0, 0, 600).variable_data();
      const at::Tensor second = buffer.narrow(0, 600, kNumel - 600).variable_data();
      AdamW optimizer({at::zeros({1}).set_requires_grad(true)}, {.lr = 0.01});
      std::vector<FlatOptimizer::BufferSlices> slices;
      slices.push_back({.buffer = buffer, .tensors = {first, second}});
      optimizer.update_shards({slices}, {}, std::nullopt, fp32_state);
      ByHand<AdamW> by_hand(dtype, fp32_state ? at::kFloat : dtype);
      for (int step = 0; step < 5; ++step) {
        const at::Tensor gradient = some(step + 1).to(dtype);
        first.mutable_grad() = gradient.narrow(0, 0, 600);
        second.mutable_grad() = gradient.narrow(0, 600, kNumel - 600);
        optimizer.step();
        by_hand.step(gradient);
      }
      EXPECT_TRUE(at::equal(buffer, by_hand.value)) << dtype << " " << fp32_state;
      const auto state = optimizer.state_of(second);
      for (size_t i = 0; i < by_hand.fields.size(); ++i) {
        EXPECT_EQ(state.fields[i].scalar_type(), fp32_state ? at::kFloat : dtype);
        EXPECT_TRUE(at::equal(state.fields[i], by_hand.fields[i].narrow(0, 600, kNumel - 600)));
      }
    }
  }
}

TEST(UpdateInFp32, WorksForRulesThatNeedFullParameters) {
  ranks(2, [](Group group) {
    const c10::AutoGradMode no_grad(false);
    const flat::ShardBounds bounds{.sizes = {kNumel}, .bounds = {0, 501, kNumel}};
    const int64_t begin = bounds.begin(group.rank());
    const int64_t length = bounds.length(group.rank());
    const at::Tensor own = some(0).to(at::kBFloat16).narrow(0, begin, length).clone();
    std::vector<FlatOptimizer::BufferSlices> slices;
    slices.push_back({.buffer = own, .tensors = {own}, .full_parameters = {bounds}});
    LAMB optimizer({at::zeros({1}).set_requires_grad(true)}, {.lr = 0.01});
    optimizer.update_shards({slices}, {}, group, /*fp32_state=*/true);
    ByHand<LAMB> by_hand(at::kBFloat16, at::kFloat);
    for (int step = 0; step < 5; ++step) {
      const at::Tensor gradient = some(step + 1).to(at::kBFloat16);
      own.mutable_grad() = gradient.narrow(0, begin, length).clone();
      optimizer.step();
      by_hand.step(gradient);
    }
    // Norms are sums of two ranks' here: a value now and then rounds to the neighbour.
    const at::Tensor expected = by_hand.value.narrow(0, begin, length);
    EXPECT_LT(own.ne(expected).sum().item<int64_t>(), length / 50);
    EXPECT_TRUE(at::allclose(own.to(at::kFloat), expected.to(at::kFloat), 2e-2, 1e-3));
    EXPECT_EQ(optimizer.state_of(own).fields[0].scalar_type(), at::kFloat);
  });
}

TEST(UpdateInFp32, UpdatesInChunksAndLeavesFp32Unchanged) {
  const at::Tensor wide = at::ones({5});
  int calls = 0;
  const auto halve = [&](const RuleCall& call) {
    ++calls;
    EXPECT_EQ(call.parameters[0].scalar_type(), at::kFloat);
    EXPECT_EQ(call.parameters[0].sizes(), call.gradients[0].sizes());
    EXPECT_EQ(call.steps, std::vector<int64_t>{7});
    call.parameters[0].mul_(0.5);
  };
  update_in_fp32(
      {.parameters = {wide}, .gradients = {wide.clone()}, .state = {}, .steps = {7}, .factors = {}},
      halve);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(at::equal(wide, at::full({5}, 0.5)));
  const at::Tensor narrow = at::ones({3, 700'000}, at::kBFloat16);
  update_in_fp32(
      {.parameters = {narrow},
       .gradients = {narrow.clone()},
       .state = {},
       .steps = {7},
       .factors = {}},
      halve);
  EXPECT_EQ(calls, 4);
  EXPECT_TRUE(at::equal(narrow, at::full({3, 700'000}, 0.5, at::kBFloat16)));
}

}  // namespace
}  // namespace lockstep::optim
