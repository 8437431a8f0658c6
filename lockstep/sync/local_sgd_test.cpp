// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/local_sgd.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/gloo/gloo_ranks.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {
namespace {

/// A model with what averaging has to think of: a parameter under two names, a frozen one, one in
/// bfloat16, buffers of both kinds.
struct Net {
  at::Tensor w = at::linspace(-1, 1, 12).reshape({4, 3}).requires_grad_();
  at::Tensor half = at::full({3}, 0.5, at::kBFloat16).requires_grad_();
  at::Tensor frozen = at::full({}, 2.0);
  at::Tensor running = at::zeros({3});
  at::Tensor count = at::zeros({}, at::kLong);

  NamedTensors parameters() const {
    return {{"w", w}, {"tied", w}, {"half", half}, {"frozen", frozen}};
  }
  NamedTensors buffers() const { return {{"running", running}, {"count", count}}; }
  std::vector<at::Tensor> trained() const { return {w, half}; }
  static at::Tensor batch(int rank, int step) {
    return at::sin(at::arange(20, at::kFloat).reshape({5, 4}) + 7 * rank + 3 * step);
  }
  at::Tensor loss(int rank, int step) const {
    return (at::tanh(batch(rank, step).matmul(w)) * half.to(at::kFloat) * frozen - 0.3)
        .pow(2)
        .mean();
  }
  void update() const {
    const c10::AutoGradMode no_grad(false);
    for (const at::Tensor& parameter : trained()) {
      parameter.data().sub_(parameter.grad(), 0.1);
    }
  }
  void zero() const {
    for (const at::Tensor& parameter : trained()) {
      parameter.mutable_grad().reset();
    }
  }
};

/// The mean of what each rank's net holds, rounded once, given to all of them.
void average(std::vector<Net>& nets) {
  for (const auto member : {&Net::w, &Net::half}) {
    at::Tensor sum = (nets[0].*member).detach().to(at::kDouble);
    for (size_t i = 1; i < nets.size(); ++i) {
      sum = sum + (nets[i].*member).detach();
    }
    for (Net& net : nets) {
      (net.*member).data().copy_(sum / static_cast<double>(nets.size()));
    }
  }
}

/// Local SGD of `size` ranks by one process.
std::vector<Net> reference(int size, int steps, const LocalSgdOptions& options) {
  std::vector<Net> nets(static_cast<size_t>(size));
  for (int step = 0; step < steps; ++step) {
    const bool warming_up = step < options.warmup_steps;
    for (int rank = 0; rank < size; ++rank) {
      const Net& net = nets[static_cast<size_t>(rank)];
      net.zero();
      net.loss(rank, step).backward();
    }
    if (warming_up) {
      for (size_t p = 0; p < 2; ++p) {
        at::Tensor sum = nets[0].trained()[p].grad().to(at::kDouble);
        for (size_t i = 1; i < nets.size(); ++i) {
          sum = sum + nets[i].trained()[p].grad();
        }
        for (const Net& net : nets) {
          net.trained()[p].mutable_grad().copy_(sum / static_cast<double>(size));
        }
      }
    }
    for (const Net& net : nets) {
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

TEST_P(LocalSgdTest, equals_one_process_that_averages_parameters) {
  const LocalSgdCase& c = GetParam();
  const std::vector<Net> expected = reference(c.size, c.steps, c.options);
  const auto body = [&](Group group) {
    const Net net;
    DataParallel parallel(net.parameters(), net.buffers(), group);
    LocalSgdCore local(parallel, net.parameters(), net.buffers(), group, c.options);
    for (int step = 0; step < c.steps; ++step) {
      if (group.size() == 1) {
        net.zero();
      }
      parallel.zero_grad(net.trained());
      net.loss(group.rank(), step).backward();
      net.update();
      const bool averaged = local.step();
      const int64_t counted = step + 1 - c.options.warmup_steps;
      EXPECT_EQ(
          averaged, group.size() > 1 && counted > 0 && counted % c.options.local_sgd_steps == 0);
    }
    local.finish();
    EXPECT_EQ(local.steps(), c.steps);
    EXPECT_TRUE(parallel.sync());
    const Net& reference_net = expected[static_cast<size_t>(group.rank())];
    EXPECT_TRUE(at::allclose(net.w.detach(), reference_net.w.detach(), 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(net.half.detach(), reference_net.half.detach(), 1e-2, 1e-2));
  };
  if (c.gloo) {
    gloo_ranks(c.size, body);
  } else {
    ranks(c.size, body);
  }
}

TEST(LocalSgd, with_a_period_of_one_is_data_parallel_bit_for_bit) {
  for (const bool gloo : {false, true}) {
    const auto body = [](Group group) {
      const Net plain;
      const Net local_net;
      DataParallel plain_parallel(plain.parameters(), plain.buffers(), group);
      DataParallel parallel(local_net.parameters(), local_net.buffers(), group);
      LocalSgdCore local(
          parallel, local_net.parameters(), local_net.buffers(), group, {.local_sgd_steps = 1});
      for (int step = 0; step < 20; ++step) {
        plain_parallel.zero_grad(plain.trained());
        plain.loss(group.rank(), step).backward();
        plain.update();
        parallel.zero_grad(local_net.trained());
        local_net.loss(group.rank(), step).backward();
        local_net.update();
        local.step();
        for (size_t i = 0; i < 2; ++i) {
          ASSERT_TRUE(at::equal(plain.trained()[i].data(), local_net.trained()[i].data())) << step;
        }
      }
      local.finish();
      EXPECT_FALSE(at::equal(plain.w.data(), Net().w.data()));
      EXPECT_TRUE(at::equal(plain.w.data(), local_net.w.data()));
    };
    if (gloo) {
      gloo_ranks(2, body);
    } else {
      ranks(2, body);
    }
  }
}

TEST(LocalSgd, gradients_stay_local_whatever_set_sync_says_and_accumulate) {
  ranks(2, [](Group group) {
    const Net alone;
    alone.loss(group.rank(), 0).backward();
    alone.loss(group.rank(), 1).backward();
    const Net net;
    DataParallel parallel(net.parameters(), net.buffers(), group);
    LocalSgdCore local(parallel, net.parameters(), net.buffers(), group);
    for (int step = 0; step < 2; ++step) {
      parallel.set_sync(step == 1);
      EXPECT_FALSE(parallel.sync());
      parallel.begin_backward();
      net.loss(group.rank(), step).backward();
      parallel.finish_backward();
    }
    EXPECT_TRUE(at::allclose(net.w.grad(), alone.w.grad(), 1e-6, 1e-7));
    local.abandon();
    EXPECT_TRUE(parallel.sync());
  });
}

TEST(LocalSgd, averages_float_buffers_and_takes_others_from_rank_0) {
  for (const bool average_buffers : {true, false}) {
    ranks(2, [&](Group group) {
      const Net net;
      DataParallel parallel(net.parameters(), net.buffers(), group);
      LocalSgdCore local(
          parallel,
          net.parameters(),
          net.buffers(),
          group,
          {.local_sgd_steps = 2, .average_buffers = average_buffers});
      net.running.fill_(group.rank() + 1.0);
      net.count.fill_(group.rank() + 5);
      net.frozen.fill_(group.rank() + 1.0);
      local.step();
      EXPECT_TRUE(local.step());
      const double mine = group.rank() + 1.0;
      EXPECT_EQ(net.running[0].item<double>(), average_buffers ? 1.5 : mine);
      EXPECT_EQ(net.count.item<int64_t>(), average_buffers ? 5 : group.rank() + 5);
      EXPECT_EQ(net.frozen.item<double>(), mine);
    });
  }
}

TEST(LocalSgd, averages_what_it_is_handed_along) {
  ranks(2, [](Group group) {
    const Net net;
    DataParallel parallel(net.parameters(), net.buffers(), group);
    const at::Tensor momentum = at::full({3}, group.rank() * 4.0, at::kDouble);
    const at::Tensor step_count = at::full({}, group.rank() + 7, at::kLong);
    LocalSgdCore local(
        parallel, net.parameters(), net.buffers(), group, {.local_sgd_steps = 2}, [&] {
          return std::vector<at::Tensor>{momentum, step_count};
        });
    local.step();
    EXPECT_EQ(momentum[0].item<double>(), group.rank() * 4.0);
    local.step();
    EXPECT_EQ(momentum[0].item<double>(), 2.0);
    EXPECT_EQ(step_count.item<int64_t>(), 7);
  });
}

TEST(LocalSgd, disabled_is_data_parallel) {
  ranks(2, [](Group group) {
    const Net net;
    DataParallel parallel(net.parameters(), net.buffers(), group);
    LocalSgdCore local(
        parallel, net.parameters(), net.buffers(), group, {.local_sgd_steps = 2, .enabled = false});
    EXPECT_TRUE(parallel.sync());
    EXPECT_FALSE(local.step() || local.step() || local.finish());
  });
}

TEST(LocalSgd, an_exception_ends_it_without_communication) {
  ranks(2, [](Group group) {
    const Net net;
    DataParallel parallel(net.parameters(), net.buffers(), group);
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
    EXPECT_TRUE(parallel.sync());
    group.barrier();  // Still in step.
  });
}

TEST(LocalSgd, goes_on_in_the_middle_of_a_period) {
  ranks(2, [](Group group) {
    std::vector<at::Tensor> ends;
    for (const bool resume : {false, true}) {
      const Net net;
      auto parallel = std::make_unique<DataParallel>(net.parameters(), net.buffers(), group);
      const LocalSgdOptions options{.local_sgd_steps = 4};
      auto local = std::make_unique<LocalSgdCore>(
          *parallel, net.parameters(), net.buffers(), group, options);
      for (int step = 0; step < 10; ++step) {
        parallel->zero_grad(net.trained());
        net.loss(group.rank(), step).backward();
        net.update();
        local->step();
        if (step == 5) {
          EXPECT_TRUE(local->average());  // As a checkpoint does.
          EXPECT_FALSE(local->average());
          if (resume) {
            local = nullptr;
            parallel = std::make_unique<DataParallel>(net.parameters(), net.buffers(), group);
            local = std::make_unique<LocalSgdCore>(
                *parallel, net.parameters(), net.buffers(), group, options);
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

TEST(LocalSgd, refuses_impossible_counts) {
  const Net net;
  DataParallel parallel(net.parameters(), net.buffers(), Group());
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
