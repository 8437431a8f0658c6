// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/join.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/comm_hook/test_hooks.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/test_gradients.h"
#include "lockstep/sync/test_join.h"
#include "lockstep/sync/test_join_net.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(Join, AccumulatedGradientsOfAFinishedRankAreIncluded) {
  // Rank 1 ends in the middle of a group, without averaging it.
  JoinNet expected;
  for (int i : {0, 1}) {
    (expected.forward(JoinNet::batch(0, i), i) / 2).backward();
  }
  (expected.forward(JoinNet::batch(1, 0), 0) / 2).backward();
  expected.update();
  ranks(2, [&](Group group) {
    JoinNet net;
    const auto parallel = net.parallel(group);
    run_joined({parallel}, [&] {
      parallel->set_sync(false);
      net.forward(JoinNet::batch(group.rank(), 0), 0).backward();
      if (group.rank() == 0) {
        parallel->set_sync(true);
        net.forward(JoinNet::batch(0, 1), 1).backward();
        net.update();
      }
    });
    EXPECT_TRUE(at::allclose(net.w.detach(), expected.w.detach(), 1e-10, 1e-12));
  });
}

TEST(Join, AveragesThatAreAddedToAreKeptByRanksWithoutData) {
  // Two averaging backward passes before an update, as with sync_each_batch.
  JoinNet expected;
  for (int i : {0, 1}) {
    for (int rank : {0, 1}) {
      if (i == 0 || rank == 0) {
        (expected.forward(JoinNet::batch(rank, i), i) / 2).backward();
      }
    }
  }
  ranks(2, [&](Group group) {
    JoinNet net;
    const auto parallel = net.parallel(group);
    run_joined({parallel}, [&] {
      for (int i = 0; i < (group.rank() == 0 ? 2 : 1); ++i) {
        net.forward(JoinNet::batch(group.rank(), i), i).backward();
      }
      if (group.rank() == 0) {
        EXPECT_TRUE(at::allclose(net.w.grad(), expected.w.grad(), 1e-10, 1e-12));
      }
    });
  });
}

TEST(Join, AnAverageClippedInPlaceIsNotSentAgain) {
  // Rank 1 ends after an update, with the gradients of it still there.
  JoinNet expected;
  for (int i : {0, 1}) {
    expected.zero();
    for (int rank : {0, 1}) {
      if (i == 0 || rank == 0) {
        (expected.forward(JoinNet::batch(rank, i), i) / 2).backward();
      }
    }
    expected.w.mutable_grad().mul_(0.5);
    expected.update();
  }
  ranks(2, [&](Group group) {
    JoinNet net;
    const auto parallel = net.parallel(group);
    run_joined({parallel}, [&] {
      for (int i = 0; i < (group.rank() == 0 ? 2 : 1); ++i) {
        net.zero();
        net.forward(JoinNet::batch(group.rank(), i), i).backward();
        net.w.mutable_grad().mul_(0.5);
        net.update();
      }
    });
    EXPECT_TRUE(at::allclose(net.w.detach(), expected.w.detach(), 1e-10, 1e-12));
  });
}

TEST(Join, SeveralModelsEachWithItsOwnBackwards) {
  for (const bool one_loss : {false, true}) {
    const std::vector<int> batches = {4, 2};
    JoinNet first;
    JoinNet second;
    second.w.data().mul_(-0.7);
    const auto losses = [&](JoinNet& a, JoinNet& b, int rank, int i) {
      return std::pair(
          a.forward(JoinNet::batch(rank, i), i), b.forward(JoinNet::batch(rank, i + 9), i));
    };
    const auto update = [](JoinNet& net) {
      const c10::AutoGradMode no_grad(false);
      net.w.data().sub_(net.w.grad(), 0.1);
    };
    for (int i = 0; i < 4; ++i) {
      first.zero();
      second.zero();
      for (int rank : {0, 1}) {
        if (i < batches[static_cast<size_t>(rank)]) {
          auto [a, b] = losses(first, second, rank, i);
          ((a + b) / 2).backward();
        }
      }
      update(first);
      update(second);
    }
    gloo_ranks(2, [&](Group group) {
      JoinNet a;
      JoinNet b;
      b.w.data().mul_(-0.7);
      const auto parallel_a = a.parallel(group);
      const auto parallel_b = b.parallel(group.split(0));
      run_joined({parallel_a, parallel_b}, [&] {
        for (int i = 0; i < batches[static_cast<size_t>(group.rank())]; ++i) {
          a.zero();
          b.zero();
          auto [loss_a, loss_b] = losses(a, b, group.rank(), i);
          if (one_loss) {
            (loss_a + loss_b).backward();
          } else {
            loss_b.backward();
            loss_a.backward();
          }
          update(a);
          update(b);
        }
      });
      EXPECT_TRUE(at::allclose(a.w.detach(), first.w.detach(), 1e-10, 1e-12)) << one_loss;
      EXPECT_TRUE(at::allclose(b.w.detach(), second.w.detach(), 1e-10, 1e-12)) << one_loss;
    });
  }
}

TEST(Join, ThrowsEverywhereWhenTheFirstRankEndsIfAsked) {
  std::atomic<int> errors{0};
  std::atomic<int> done{0};
  ranks(3, [&](Group group) {
    JoinNet net;
    const auto parallel = net.parallel(group);
    try {
      run_joined(
          {parallel},
          [&] {
            for (int i = 0; i < (group.rank() == 1 ? 2 : 5); ++i) {
              net.forward(JoinNet::batch(group.rank(), i), i).backward();
              net.zero();
              ++done;
            }
          },
          {.throw_on_early_termination = true});
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(group.rank() == 1 ? "this rank" : "another rank"));
      ++errors;
    }
    // Nothing is left under way.
    net.forward(JoinNet::batch(group.rank(), 0), 0).backward();
    EXPECT_TRUE(net.w.grad().defined());
  });
  EXPECT_EQ(errors, 3);
  EXPECT_EQ(done, 6);
}

TEST(Join, EvenInputsDoNotCountAsEarlyTermination) {
  JoinNet expected;
  for (int i = 0; i < 3; ++i) {
    for (int rank : {0, 1}) {
      (expected.forward(JoinNet::batch(rank, i), i) / 2).backward();
    }
    expected.update();
    expected.zero();
  }
  ranks(2, [&](Group group) {
    JoinNet net;
    const auto parallel = net.parallel(group);
    run_joined(
        {parallel},
        [&] { train(net, *parallel, group.rank(), 3, 1); },
        {.throw_on_early_termination = true});
    EXPECT_TRUE(at::allclose(net.w.detach(), expected.w.detach(), 1e-10, 1e-12));
    EXPECT_TRUE(at::allclose(net.extra.detach(), expected.extra.detach(), 1e-10, 1e-12));
  });
}

TEST(Join, AnExceptionPropagatesAtOnceAndReleasesTheModel) {
  ranks(2, [](Group group) {
    JoinNet net;
    const auto parallel = net.parallel(group);
    EXPECT_THROW(
        run_joined({parallel}, [] { throw std::runtime_error("from the body"); }),
        std::runtime_error);
    net.forward(JoinNet::batch(group.rank(), 0), 0).backward();
    EXPECT_TRUE(net.w.grad().defined());
  });
}

TEST(Join, RefusesToNestAndToJoinNothing) {
  EXPECT_THROW(run_joined({}, [] {}), ConfigError);
  ranks(2, [](Group group) {
    JoinNet net;
    const auto parallel = net.parallel(group);
    EXPECT_THROW(run_joined({parallel}, [&] { run_joined({parallel}, [] {}); }), ConfigError);
  });
}

TEST(Join, WorksWithCompressedGradients) {
  ranks(2, [](Group group) {
    const at::Tensor w = at::ones({32, 16}).requires_grad_();
    const auto parallel = std::make_shared<DataParallel>(
        NamedTensors{{"w", w}},
        NamedTensors{},
        group,
        DataParallelOptions{
            .comm_hook = {.type = CommHookType::kPowerSgd, .power_sgd = {.start_iter = 0}}});
    run_joined({parallel}, [&] {
      for (int i = 0; i < (group.rank() == 0 ? 5 : 2); ++i) {
        zero_grad({w});
        (w * 2).sum().backward();
        const double expected = i < 2 ? 2 : 1;
        EXPECT_NEAR(w.grad().mean().item<double>(), expected, 1e-4);
      }
    });
    EXPECT_EQ(parallel->hook_state().iteration, 5);
    EXPECT_TRUE(has_compressed(*parallel));
  });
}

}  // namespace
}  // namespace lockstep
