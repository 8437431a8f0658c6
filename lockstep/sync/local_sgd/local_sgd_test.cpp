// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/local_sgd/local_sgd.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/local_sgd/test_local_net.h"
#include "lockstep/sync/test_gradients.h"

namespace lockstep {
namespace {

/// The mean of what each rank's net holds, rounded once, given to all of them.
void average(std::vector<LocalNet>& nets) {
  for (const auto member : {&LocalNet::w, &LocalNet::half}) {
    at::Tensor sum = (nets[0].*member).detach().to(at::kDouble);
    for (size_t i = 1; i < nets.size(); ++i) {
      sum = sum + (nets[i].*member).detach();
    }
    for (LocalNet& net : nets) {
      (net.*member).data().copy_(sum / static_cast<double>(nets.size()));
    }
  }
}

/// Local SGD of `size` ranks by one process.
std::vector<LocalNet> local_sgd_reference(int size, int steps, const LocalSgdOptions& options) {
  std::vector<LocalNet> nets(static_cast<size_t>(size));
  for (int step = 0; step < steps; ++step) {
    const bool warming_up = step < options.warmup_steps;
    for (int rank = 0; rank < size; ++rank) {
      const LocalNet& net = nets[static_cast<size_t>(rank)];
      net.zero();
      net.loss(rank, step).backward();
    }
    if (warming_up) {
      for (size_t p = 0; p < 2; ++p) {
        at::Tensor sum = nets[0].trained()[p].grad().to(at::kDouble);
        for (size_t i = 1; i < nets.size(); ++i) {
          sum = sum + nets[i].trained()[p].grad();
        }
        for (const LocalNet& net : nets) {
          net.trained()[p].mutable_grad().copy_(sum / static_cast<double>(size));
        }
      }
    }
    for (const LocalNet& net : nets) {
      net.update();
    }
    if (!warming_up && (step + 1 - options.warmup_steps) % options.local_sgd_steps == 0) {
      average(nets);
    }
  }
  average(nets);
  return nets;
}

struct LocalSgdCase {
  const char* name;
  int size;
  int steps;
  LocalSgdOptions options;
  bool gloo = false;
};

class LocalSgdTest : public ::testing::TestWithParam<LocalSgdCase> {};

INSTANTIATE_TEST_SUITE_P(
    Cases,
    LocalSgdTest,
    ::testing::Values(
        LocalSgdCase{"alone", 1, 5, {.local_sgd_steps = 2}},
        LocalSgdCase{"ends_on_a_period", 2, 12, {.local_sgd_steps = 4}},
        LocalSgdCase{"ends_between_periods", 3, 11, {.local_sgd_steps = 4}},
        LocalSgdCase{"one_average_at_the_end", 2, 5, {.local_sgd_steps = 100}},
        LocalSgdCase{"after_a_warm_up", 2, 10, {.local_sgd_steps = 3, .warmup_steps = 3}},
        LocalSgdCase{"all_warm_up", 2, 4, {.local_sgd_steps = 3, .warmup_steps = 9}},
        LocalSgdCase{"gloo", 2, 11, {.local_sgd_steps = 4}, true}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_P(LocalSgdTest, EqualsOneProcessThatAveragesParameters) {
  const LocalSgdCase& c = GetParam();
  const std::vector<LocalNet> expected = local_sgd_reference(c.size, c.steps, c.options);
  const auto body = [&](Group group) {
    const LocalNet net;
    const auto parallel = data_parallel(net, group);
    LocalSgdCore local(parallel, net.parameters(), net.buffers(), group, c.options);
    for (int step = 0; step < c.steps; ++step) {
      if (group.size() == 1) {
        net.zero();
      }
      zero_grad(net.trained());
      net.loss(group.rank(), step).backward();
      net.update();
      const bool averaged = local.step();
      const int64_t counted = step + 1 - c.options.warmup_steps;
      EXPECT_EQ(
          averaged, group.size() > 1 && counted > 0 && counted % c.options.local_sgd_steps == 0);
    }
    local.finish();
    EXPECT_EQ(local.steps(), c.steps);
    EXPECT_TRUE(averages(net, group));
    const LocalNet& reference_net = expected[static_cast<size_t>(group.rank())];
    EXPECT_TRUE(at::allclose(net.w.detach(), reference_net.w.detach(), 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(net.half.detach(), reference_net.half.detach(), 1e-2, 1e-2));
  };
  if (c.gloo) {
    gloo_ranks(c.size, body);
  } else {
    ranks(c.size, body);
  }
}

TEST(LocalSgd, WithAPeriodOfOneIsDataParallelBitForBit) {
  for (const bool gloo : {false, true}) {
    const auto body = [](Group group) {
      const LocalNet plain;
      const LocalNet local_net;
      const auto plain_parallel = data_parallel(plain, group);
      const auto parallel = data_parallel(local_net, group);
      LocalSgdCore local(
          parallel, local_net.parameters(), local_net.buffers(), group, {.local_sgd_steps = 1});
      for (int step = 0; step < 20; ++step) {
        zero_grad(plain.trained());
        plain.loss(group.rank(), step).backward();
        plain.update();
        zero_grad(local_net.trained());
        local_net.loss(group.rank(), step).backward();
        local_net.update();
        local.step();
        for (size_t i = 0; i < 2; ++i) {
          ASSERT_TRUE(at::equal(plain.trained()[i].data(), local_net.trained()[i].data())) << step;
        }
      }
      local.finish();
      EXPECT_FALSE(at::equal(plain.w.data(), LocalNet().w.data()));
      EXPECT_TRUE(at::equal(plain.w.data(), local_net.w.data()));
    };
    if (gloo) {
      gloo_ranks(2, body);
    } else {
      ranks(2, body);
    }
  }
}

TEST(LocalSgd, GradientsStayLocalForBothValuesOfSyncAndAccumulate) {
  ranks(2, [](Group group) {
    const LocalNet alone;
    alone.loss(group.rank(), 0).backward();
    alone.loss(group.rank(), 1).backward();
    const LocalNet net;
    const auto parallel = data_parallel(net, group);
    LocalSgdCore local(parallel, net.parameters(), net.buffers(), group);
    for (int step = 0; step < 2; ++step) {
      parallel->set_sync(step == 1);
      parallel->begin_backward();
      net.loss(group.rank(), step).backward();
      parallel->finish_backward();
    }
    EXPECT_TRUE(at::allclose(net.w.grad(), alone.w.grad(), 1e-6, 1e-7));
    local.abandon();
    EXPECT_TRUE(averages(net, group));
  });
}

TEST(LocalSgd, KeepsTheModelThatItsOwnerReleases) {
  ranks(2, [](Group group) {
    const LocalNet net;
    auto parallel = data_parallel(net, group);
    const std::weak_ptr<DataParallel> watched = parallel;
    auto local = std::make_unique<LocalSgdCore>(
        std::move(parallel), net.parameters(), net.buffers(), group, LocalSgdOptions{});
    EXPECT_FALSE(watched.expired());
    local->step();
    EXPECT_TRUE(local->finish());
    local.reset();
    EXPECT_TRUE(watched.expired());
  });
}

TEST(LocalSgd, RefusesACommHookThatNoGradientWouldPass) {
  // In a group of one too: a program is right or wrong whatever it is started with.
  for (const int size : {1, 2}) {
    ranks(size, [](Group group) {
      const auto steps_with = [&](CommHookType type, LocalSgdOptions options) {
        const LocalNet net;
        return LocalSgdCore(
                   data_parallel(net, group, {.type = type}),
                   net.parameters(),
                   net.buffers(),
                   group,
                   options)
            .steps();
      };
      using enum CommHookType;
      EXPECT_THROW(steps_with(kFp16, {}), ConfigError);
      EXPECT_THROW(steps_with(kPowerSgd, {.local_sgd_steps = 2}), ConfigError);
      EXPECT_EQ(steps_with(kNone, {}), 0);
      EXPECT_EQ(steps_with(kFp16, {.local_sgd_steps = 1}), 0);
      EXPECT_EQ(steps_with(kFp16, {.warmup_steps = 1}), 0);
      EXPECT_EQ(steps_with(kFp16, {.enabled = false}), 0);
    });
  }
}

TEST(LocalSgd, DisabledIsDataParallel) {
  ranks(2, [](Group group) {
    const LocalNet net;
    const auto parallel = data_parallel(net, group);
    LocalSgdCore local(
        parallel, net.parameters(), net.buffers(), group, {.local_sgd_steps = 2, .enabled = false});
    EXPECT_TRUE(averages(net, group));
    EXPECT_FALSE(local.step() || local.step() || local.finish());
  });
}

TEST(LocalSgd, AnExceptionEndsItWithoutCommunication) {
  ranks(2, [](Group group) {
    const LocalNet net;
    const auto parallel = data_parallel(net, group);
    try {
      LocalSgdCore local(parallel, net.parameters(), net.buffers(), group);
      net.w.data().fill_(group.rank());
      local.step();
      if (group.rank() == 0) {
        throw std::runtime_error("on one rank alone");
      }
      local.abandon();
      EXPECT_FALSE(local.finish());
    } catch (const std::runtime_error&) {
      EXPECT_EQ(group.rank(), 0);
    }
    EXPECT_EQ(net.w.detach().mean().item<double>(), group.rank());
    EXPECT_TRUE(averages(net, group));
  });
}

TEST(LocalSgd, ResumesInTheMiddleOfAPeriod) {
  ranks(2, [](Group group) {
    std::vector<at::Tensor> ends;
    for (const bool resume : {false, true}) {
      const LocalNet net;
      auto parallel = data_parallel(net, group);
      const LocalSgdOptions options{.local_sgd_steps = 4};
      auto local =
          std::make_unique<LocalSgdCore>(parallel, net.parameters(), net.buffers(), group, options);
      for (int step = 0; step < 10; ++step) {
        zero_grad(net.trained());
        net.loss(group.rank(), step).backward();
        net.update();
        local->step();
        if (step == 5) {
          EXPECT_TRUE(local->average());  // As a checkpoint does.
          EXPECT_FALSE(local->average());
          if (resume) {
            local = nullptr;
            parallel = data_parallel(net, group);
            local = std::make_unique<LocalSgdCore>(
                parallel, net.parameters(), net.buffers(), group, options);
            local->load_steps(6);
          }
        }
      }
      local->finish();
      EXPECT_EQ(local->steps(), 10);
      ends.push_back(net.w.detach().clone());
    }
    EXPECT_TRUE(at::equal(ends[0], ends[1]));
  });
}

TEST(LocalSgd, RefusesImpossibleCounts) {
  const LocalNet net;
  const auto parallel = data_parallel(net, Group());
  const auto make = [&](LocalSgdOptions options) {
    return LocalSgdCore(parallel, net.parameters(), net.buffers(), Group(), options).steps();
  };
  EXPECT_THROW(make({.local_sgd_steps = 0}), ConfigError);
  EXPECT_THROW(make({.warmup_steps = -1}), ConfigError);
  LocalSgdCore local(parallel, net.parameters(), net.buffers(), Group());
  EXPECT_THROW(local.load_steps(-1), ConfigError);
}

}  // namespace
}  // namespace lockstep
