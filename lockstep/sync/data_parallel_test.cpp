// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/data_parallel.h"

#include <atomic>
#include <functional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/backward_hooks.h"
#include "lockstep/sync/test_gradients.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

/// A small model by hand: two layers, a frozen scale, a branch, and a parameter known under two
/// names.
struct TestNet {
  at::Tensor w1 = at::linspace(-1, 1, 12, at::kDouble).reshape({4, 3}).requires_grad_();
  at::Tensor w2 = at::linspace(1, -1, 6, at::kDouble).reshape({3, 2}).requires_grad_();
  at::Tensor branch = at::full({2}, 0.5, at::kDouble).requires_grad_();
  at::Tensor scale = at::full({}, 2.0, at::kDouble);
  at::Tensor running = at::zeros({2}, at::kDouble);
  at::Tensor count = at::zeros({}, at::kLong);

  NamedTensors parameters() const {
    return {{"w1", w1}, {"w2", w2}, {"tied", w1}, {"branch", branch}, {"scale", scale}};
  }
  NamedTensors buffers() const { return {{"running", running}, {"count", count}}; }
  at::Tensor loss(const at::Tensor& x, bool use_branch) const {
    at::Tensor y = at::tanh(x.matmul(w1)).matmul(w2) * scale + w1.sum();
    if (use_branch) {
      y = y * branch;
    }
    return y.pow(2).mean();
  }
};

at::Tensor slice(int rank, int step = 0) {
  return at::sin(at::arange(20, at::kDouble).reshape({5, 4}) + 7 * rank + step);
}

/// The gradients one process gets by averaging over the slices of `size` ranks.
TestNet expected_net(int size, const std::function<bool(int rank)>& use_branch) {
  TestNet net;
  for (int rank = 0; rank < size; ++rank) {
    (net.loss(slice(rank), use_branch(rank)) / size).backward();
  }
  return net;
}

void expect_close(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.defined(), b.defined());
  if (a.defined()) {
    EXPECT_TRUE(at::allclose(a, b, 1e-12, 1e-14)) << a << b;
  }
}

class DataParallelTest : public ::testing::TestWithParam<std::tuple<int, int64_t>> {};

INSTANTIATE_TEST_SUITE_P(
    WorldAndBucket,
    DataParallelTest,
    ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(1, 100, 1 << 20)));

TEST_P(DataParallelTest, EqualsOneProcessForEveryControlFlow) {
  const auto [size, cap_bytes] = GetParam();
  const std::vector<std::function<bool(int)>> branches = {
      [](int) { return true; }, [](int) { return false; }, [](int rank) { return rank == 0; }};
  for (const auto& use_branch : branches) {
    const TestNet expected = expected_net(size, use_branch);
    ranks(size, [&, cap_bytes = cap_bytes](Group group) {
      const TestNet net;
      DataParallel parallel(
          net.parameters(),
          net.buffers(),
          group,
          {.cap_bytes = cap_bytes, .first_cap_bytes = cap_bytes});
      for (int step = 0; step < 3; ++step) {
        parallel.begin_backward();
        net.loss(slice(group.rank()), use_branch(group.rank())).backward();
        parallel.finish_backward();
        expect_close(net.w1.grad(), expected.w1.grad());
        expect_close(net.w2.grad(), expected.w2.grad());
        expect_close(net.branch.grad(), expected.branch.grad());
        EXPECT_FALSE(net.scale.grad().defined());
        zero_grad({net.w1, net.w2, net.branch});
      }
    });
  }
}

TEST(DataParallel, StartsFromRank0sParametersAndBuffers) {
  ranks(3, [](Group group) {
    const TestNet net;
    net.w2.detach().fill_(group.rank() + 1);
    net.scale.fill_(group.rank() + 1);
    net.count.fill_(group.rank() + 1);
    const DataParallel parallel(net.parameters(), net.buffers(), group);
    EXPECT_EQ(net.w2.detach().mean().item<double>(), 1);
    EXPECT_EQ(net.scale.item<double>(), 1);
    EXPECT_EQ(net.count.item<int64_t>(), 1);
  });
}

TEST(DataParallel, BuffersFollowRank0AfterEachAveragedBackward) {
  ranks(2, [](Group group) {
    const TestNet net;
    DataParallel parallel(net.parameters(), net.buffers(), group);
    net.running.fill_(group.rank() + 5.0);
    parallel.set_sync(false);
    net.loss(slice(group.rank()), true).backward();
    EXPECT_EQ(net.running[0].item<double>(), group.rank() + 5.0);
    parallel.set_sync(true);
    net.loss(slice(group.rank()), true).backward();
    EXPECT_EQ(net.running[0].item<double>(), 5.0);
  });
}

TEST(DataParallel, AccumulatesLocallyWithoutSyncThenAveragesEverything) {
  const int size = 2;
  TestNet expected;
  for (int rank = 0; rank < size; ++rank) {
    for (int step = 0; step < 3; ++step) {
      // The branch is used in the first micro-step alone: its gradient must not be lost.
      (expected.loss(slice(rank, step), step == 0) / size).backward();
    }
  }
  ranks(size, [&](Group group) {
    const TestNet net;
    DataParallel parallel(
        net.parameters(), net.buffers(), group, {.cap_bytes = 64, .first_cap_bytes = 64});
    for (int step = 0; step < 3; ++step) {
      parallel.set_sync(step == 2);
      net.loss(slice(group.rank(), step), step == 0).backward();
    }
    expect_close(net.w1.grad(), expected.w1.grad());
    expect_close(net.branch.grad(), expected.branch.grad());
  });
}

TEST(DataParallel, GradientsAreViewsInTheBucketsAndSurviveEitherZeroGrad) {
  ranks(2, [](Group group) {
    const TestNet net;
    DataParallel parallel(net.parameters(), net.buffers(), group);
    net.loss(slice(group.rank()), true).backward();
    const void* place = net.w1.grad().const_data_ptr();
    const at::Tensor before = net.w1.grad().clone();
    for (at::Tensor parameter : {net.w1, net.w2, net.branch}) {
      parameter.mutable_grad().zero_();
    }
    net.loss(slice(group.rank()), true).backward();
    EXPECT_EQ(net.w1.grad().const_data_ptr(), place);
    zero_grad({net.w1, net.w2, net.branch});
    net.loss(slice(group.rank()), true).backward();
    EXPECT_EQ(net.w1.grad().const_data_ptr(), place);
    expect_close(net.w1.grad(), before);
  });
}

TEST(DataParallel, TorchsOwnOptimizersMayZeroTheGradients) {
  for (const bool set_to_none : {true, false}) {
    ranks(2, [&](Group group) {
      const TestNet net;
      const DataParallel parallel(net.parameters(), net.buffers(), group);
      torch::optim::SGD optimizer(std::vector<at::Tensor>{net.w1, net.w2, net.branch}, 0.1);
      net.loss(slice(group.rank()), true).backward();
      const at::Tensor expected = net.w1.grad().clone();
      optimizer.zero_grad(set_to_none);
      net.loss(slice(group.rank()), true).backward();
      expect_close(net.w1.grad(), expected);
    });
  }
}

TEST(DataParallel, ABackwardThatThrewCanBeAbandonedOrIsReported) {
  ranks(2, [](Group group) {
    const TestNet net;
    DataParallel parallel(
        net.parameters(), net.buffers(), group, {.cap_bytes = 1, .first_cap_bytes = 1});
    net.loss(slice(group.rank()), true).backward();
    const at::Tensor expected = net.w1.grad().clone();
    zero_grad({net.w1, net.w2, net.branch});
    bool fail = true;
    const BackwardHooks saboteur({net.w1}, [&](size_t) {
      if (fail) {
        throw std::runtime_error("on purpose");
      }
    });
    EXPECT_THROW(net.loss(slice(group.rank()), true).backward(), std::runtime_error);
    fail = false;
    EXPECT_THROW(net.loss(slice(group.rank()), true).backward(), Error);
    parallel.abandon_backward();
    zero_grad({net.w1, net.w2, net.branch});
    net.loss(slice(group.rank()), true).backward();
    expect_close(net.w1.grad(), expected);
  });
}

TEST(DataParallel, RefusesModelsLaidOutDifferently) {
  EXPECT_THROW(
      ranks(
          2,
          [](Group group) {
            at::Tensor weight = at::ones({2, 3, 4, 4});
            if (group.rank() == 1) {
              weight = weight.to(at::MemoryFormat::ChannelsLast);
            }
            const DataParallel parallel({{"weight", weight.requires_grad_()}}, {}, group);
          }),
      ConfigError);
}

TEST(DataParallel, SetLocalOverridesSetSync) {
  const TestNet expected = expected_net(2, [](int) { return true; });
  ranks(2, [&](Group group) {
    const TestNet net;
    TestNet alone;
    DataParallel parallel(net.parameters(), net.buffers(), group);
    parallel.set_local(true);
    parallel.set_sync(true);
    net.loss(slice(group.rank()), true).backward();
    alone.loss(slice(group.rank()), true).backward();
    expect_close(net.w1.grad(), alone.w1.grad());
    parallel.set_local(false);
    zero_grad({net.w1, net.w2, net.branch});
    net.loss(slice(group.rank()), true).backward();
    expect_close(net.w1.grad(), expected.w1.grad());
  });
}

TEST(DataParallel, AnAccumulatingBackwardLeavesUnreachedGradientsUndefined) {
  for (const bool local : {false, true}) {
    ranks(2, [&](Group group) {
      const TestNet net;
      TestNet alone;
      DataParallel parallel(net.parameters(), net.buffers(), group);
      const std::vector<at::Tensor> all = {net.w1, net.w2, net.branch};
      net.loss(slice(group.rank()), true).backward();
      zero_grad(all);
      parallel.set_local(local);
      parallel.set_sync(false);
      net.loss(slice(group.rank(), 1), false).backward();
      EXPECT_FALSE(net.branch.grad().defined());
      EXPECT_TRUE(net.w1.grad().defined());
      // What is there already is added to, what was missing comes.
      const void* place = net.w1.grad().const_data_ptr();
      net.loss(slice(group.rank(), 2), true).backward();
      EXPECT_EQ(net.w1.grad().const_data_ptr(), place);
      alone.loss(slice(group.rank(), 1), false).backward();
      alone.loss(slice(group.rank(), 2), true).backward();
      expect_close(net.w1.grad(), alone.w1.grad());
      expect_close(net.branch.grad(), alone.branch.grad());
      // One that reaches nothing of the model.
      zero_grad(all);
      parallel.begin_backward();
      at::ones({2}, at::kDouble).requires_grad_().sum().backward();
      parallel.finish_backward();
      for (const at::Tensor& parameter : all) {
        EXPECT_FALSE(parameter.grad().defined());
      }
    });
  }
}

TEST(DataParallel, ARankWhoseLossMissesTheModelCountsAsZero) {
  TestNet expected;
  (expected.loss(slice(0), true) / 2).backward();
  ranks(2, [&](Group group) {
    const TestNet net;
    at::Tensor elsewhere = at::ones({2}, at::kDouble).requires_grad_();
    DataParallel parallel(net.parameters(), net.buffers(), group);
    parallel.begin_backward();
    (group.rank() == 0 ? net.loss(slice(0), true) : elsewhere.sum()).backward();
    parallel.finish_backward();
    expect_close(net.w1.grad(), expected.w1.grad());
  });
}

TEST(DataParallel, SeveralBackwardsBeforeAStepAddUp) {
  TestNet expected;
  for (int rank = 0; rank < 2; ++rank) {
    (expected.loss(slice(rank, 0), true) / 2).backward();
    (expected.loss(slice(rank, 1), false) / 2).backward();
  }
  ranks(2, [&](Group group) {
    const TestNet net;
    const DataParallel parallel(net.parameters(), net.buffers(), group);
    net.loss(slice(group.rank(), 0), true).backward();
    net.loss(slice(group.rank(), 1), false).backward();
    expect_close(net.w1.grad(), expected.w1.grad());
    expect_close(net.branch.grad(), expected.branch.grad());
  });
}

TEST(DataParallel, AGradientWithAnotherLayoutStillLandsInItsBucket) {
  ranks(2, [](Group group) {
    const at::Tensor weight =
        at::ones({2, 3, 4, 4}).to(at::MemoryFormat::ChannelsLast).requires_grad_();
    const DataParallel parallel({{"weight", weight}}, {}, group);
    (weight * at::arange(96.0).reshape({2, 3, 4, 4}) * (group.rank() + 1)).sum().backward();
    EXPECT_EQ(weight.grad().strides(), weight.strides());
    EXPECT_TRUE(at::allclose(
        weight.grad().to(at::kDouble), at::arange(96.0, at::kDouble).reshape({2, 3, 4, 4}) * 1.5));
  });
}

TEST(DataParallel, RefusesModelsThatDifferNamingTheFirstDifference) {
  std::atomic<int> errors{0};
  ranks(2, [&](Group group) {
    NamedTensors parameters = {
        {"fc.bias", at::ones({4}).requires_grad_()},
        {"fc.weight", at::ones({group.rank() == 0 ? 128 : 300, 4}).requires_grad_()}};
    try {
      const DataParallel parallel(parameters, {}, group);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("fc.weight Float[128, 4]"));
      EXPECT_THAT(error.what(), HasSubstr("fc.weight Float[300, 4]"));
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

TEST(DataParallel, RefusesAModelWithAParameterMore) {
  EXPECT_THROW(
      ranks(
          2,
          [](Group group) {
            NamedTensors parameters = {{"a", at::ones({4}).requires_grad_()}};
            if (group.rank() == 1) {
              parameters.push_back({"b", at::ones({4}).requires_grad_()});
            }
            const DataParallel parallel(parameters, {}, group);
          }),
      ConfigError);
}

TEST(DataParallel, RefusesEmptyBuckets) {
  EXPECT_THROW(DataParallel({}, {}, Group(), {.cap_bytes = 0}), ConfigError);
}

TEST(DataParallel, WorksOverGlooWhileBackwardRuns) {
  const TestNet expected = expected_net(2, [](int rank) { return rank == 1; });
  gloo_ranks(2, [&](Group group) {
    const TestNet net;
    DataParallel parallel(
        net.parameters(), net.buffers(), group, {.cap_bytes = 1, .first_cap_bytes = 1});
    EXPECT_EQ(parallel.bucket_count(), 3U);
    for (int step = 0; step < 20; ++step) {
      zero_grad({net.w1, net.w2, net.branch});
      net.loss(slice(group.rank()), group.rank() == 1).backward();
      expect_close(net.w1.grad(), expected.w1.grad());
      expect_close(net.branch.grad(), expected.branch.grad());
    }
  });
}

}  // namespace
}  // namespace lockstep
