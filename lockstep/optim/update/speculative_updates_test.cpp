// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update/speculative_updates.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/comm/thread/ranks.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/test_training.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSpeculativeSliceSize = 100;
constexpr int64_t kSpeculativeSlices = 3;

/// AdamW of shard slices in one buffer. Their gradients are views of one buffer, too.
struct ShardedTraining {
  explicit ShardedTraining(const OffloadOptimizer& offload)
      : optimizer({at::zeros({3}).requires_grad_()}, {.lr = 0.01}) {
    for (int64_t i = 0; i < kSpeculativeSlices; ++i) {
      slices.push_back(
          buffer.narrow(0, i * kSpeculativeSliceSize, kSpeculativeSliceSize).variable_data());
      slices.back().set_requires_grad(true);
    }
    optimizer.update_shards({{{.buffer = buffer, .tensors = slices}}}, offload);
  }

  void put_gradients(int64_t t) {
    gradient.copy_((at::arange(kSpeculativeSlices * kSpeculativeSliceSize) * 0.3 + t).cos());
    for (int64_t i = 0; i < kSpeculativeSlices; ++i) {
      slices[i].mutable_grad() =
          gradient.narrow(0, i * kSpeculativeSliceSize, kSpeculativeSliceSize);
    }
  }
  void expect_same(const ShardedTraining& other, const std::string& what) const {
    EXPECT_TRUE(at::equal(buffer, other.buffer)) << what;
    for (int64_t i = 0; i < kSpeculativeSlices; ++i) {
      const ParameterState state = optimizer.state_of(slices[i]);
      const ParameterState expected = other.optimizer.state_of(other.slices[i]);
      EXPECT_EQ(state.step, expected.step) << what;
      EXPECT_TRUE(at::equal(state.fields[0], expected.fields[0])) << what;
      EXPECT_TRUE(at::equal(state.fields[1], expected.fields[1])) << what;
    }
  }

  at::Tensor buffer = (at::arange(kSpeculativeSlices * kSpeculativeSliceSize) * 0.7).sin();
  at::Tensor gradient = at::zeros({kSpeculativeSlices * kSpeculativeSliceSize});
  std::vector<at::Tensor> slices;
  AdamW optimizer;
};

constexpr OffloadDevice kCpu = OffloadDevice::kCpu;

TEST(SpeculativeUpdates, StepUsesTheResultOfUnchangedInputs) {
  ShardedTraining usual({});
  ShardedTraining speculative({.device = kCpu, .super_offload = true});
  const auto updates = speculative.optimizer.speculative();
  ASSERT_NE(updates, nullptr);
  for (int64_t t = 0; t < 5; ++t) {
    usual.put_gradients(t);
    usual.optimizer.step();
    speculative.put_gradients(t);
    updates->begin(0, 0, speculative.gradient);
    speculative.optimizer.step();
    EXPECT_EQ(updates->taken(), t) << "the first step creates the state";
    speculative.expect_same(usual, "step " + std::to_string(t));
  }
}

TEST(SpeculativeUpdates, StepUpdatesAgainIfAnInputHasChanged) {
  const std::vector<std::function<void(ShardedTraining&)>> changes = {
      [](ShardedTraining& training) { training.optimizer.options().lr = 0.5; },
      [](ShardedTraining& training) { training.gradient.mul_(0.5); },
      [](ShardedTraining& training) { training.slices[1].detach().add_(1); },
      [](ShardedTraining& training) { training.slices[1].mutable_grad().reset(); },
      [](ShardedTraining& training) {
        training.optimizer.set_state(
            training.slices[0], training.optimizer.state_of(training.slices[0]));
      }};
  for (size_t i = 0; i < changes.size(); ++i) {
    ShardedTraining usual({});
    ShardedTraining speculative({.device = kCpu, .super_offload = true});
    for (ShardedTraining* training : {&usual, &speculative}) {
      training->put_gradients(0);
      training->optimizer.step();
      training->put_gradients(1);
      if (training == &speculative) {
        training->optimizer.speculative()->begin(0, 0, training->gradient);
      }
      changes[i](*training);
      training->optimizer.step();
    }
    EXPECT_EQ(speculative.optimizer.speculative()->taken(), 0) << "change " << i;
    speculative.expect_same(usual, "change " + std::to_string(i));
  }
}

TEST(SpeculativeUpdates, DiscardDropsABegunUpdate) {
  ShardedTraining training({.device = kCpu, .super_offload = true});
  for (int64_t t = 0; t < 2; ++t) {
    training.put_gradients(t);
    training.optimizer.speculative()->begin(0, 0, training.gradient);
    training.optimizer.speculative()->discard(0, 0);
    training.optimizer.step();
  }
  EXPECT_EQ(training.optimizer.speculative()->taken(), 0);
}

TEST(SpeculativeUpdates, NeedSuperOffload) {
  EXPECT_EQ(ShardedTraining({.device = kCpu}).optimizer.speculative(), nullptr);
  EXPECT_EQ(ShardedTraining({}).optimizer.speculative(), nullptr);
}

TEST(FlatOptimizer, DoesNotShareShardSlices) {
  ranks(2, [](const Group& group) {
    ShardedTraining training({});
    EXPECT_THAT(
        error_of([&] { training.optimizer.share(group); }), HasSubstr("expected full parameters"));
  });
}

}  // namespace
}  // namespace lockstep::optim
