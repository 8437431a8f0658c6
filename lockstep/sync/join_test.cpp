// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/join.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/gloo/gloo_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

/// SGD with momentum on two layers; `extra` takes part in even batches only, `running` is a buffer
/// that each forward moves, `velocity` the optimizer's state.
struct Net {
  at::Tensor w = at::linspace(-1, 1, 12, at::kDouble).reshape({4, 3}).requires_grad_();
  at::Tensor extra = at::full({3}, 0.5, at::kDouble).requires_grad_();
  at::Tensor running = at::zeros({3}, at::kDouble);
  at::Tensor velocity = at::zeros({4, 3}, at::kDouble);

  NamedTensors parameters() const { return {{"w", w}, {"extra", extra}}; }
  NamedTensors buffers() const { return {{"running", running}}; }
  static at::Tensor batch(int rank, int index) {
    return at::sin(at::arange(20, at::kDouble).reshape({5, 4}) + 7 * rank + 3 * index);
  }
  at::Tensor forward(const at::Tensor& x, int index) {
    at::Tensor y = at::tanh(x.matmul(w));
    running.mul_(0.9).add_(y.detach().mean(0), 0.1);
    if (index % 2 == 0) {
      y = y * extra;
    }
    return (y - 0.3).pow(2).mean();
  }
  void update() {
    const c10::AutoGradMode no_grad(false);
    if (w.grad().defined()) {
      velocity.mul_(0.5).add_(w.grad());
      w.data().sub_(velocity, 0.1);
    }
    if (extra.grad().defined()) {
      extra.data().sub_(extra.grad(), 0.1);
    }
  }
  void zero() {
    w.mutable_grad().reset();
    extra.mutable_grad().reset();
  }
  std::shared_ptr<DataParallel> parallel(const Group& group) const {
    return std::make_shared<DataParallel>(
        parameters(), buffers(), group, DataParallelOptions{.cap_bytes = 1, .first_cap_bytes = 1});
  }
};

/// One process that does what the ranks together should: step s takes batch s of every rank that
/// has one. `every`: accumulation, counted by each rank on its own and cut short at its end.
Net reference(const std::vector<int>& batches, bool divide_by_initial, int every) {
  Net net;
  const auto steps_of = [&](int count) { return (count + every - 1) / every; };
  int steps = 0;
  for (int count : batches) {
    steps = std::max(steps, steps_of(count));
  }
  for (int step = 0; step < steps; ++step) {
    int alive = 0;
    for (int count : batches) {
      alive += step < steps_of(count) ? 1 : 0;
    }
    const double divisor = divide_by_initial ? static_cast<double>(batches.size()) : alive;
    net.zero();
    at::Tensor kept;
    const at::Tensor before = net.running.clone();
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      net.running.copy_(before);
      for (int i = step * every; i < std::min((step + 1) * every, batches[rank]); ++i) {
        (net.forward(Net::batch(static_cast<int>(rank), i), i) / divisor).backward();
      }
      if (!kept.defined() && step < steps_of(batches[rank])) {
        kept = net.running.clone();  // Of the first rank that has data.
      }
    }
    net.running.copy_(kept);
    net.update();
  }
  return net;
}

void train(
    Net& net,
    DataParallel& parallel,
    int rank,
    int batches,
    int every,
    bool zero_in_place = false) {
  for (int i = 0; i < batches; ++i) {
    const bool last = (i + 1) % every == 0 || i + 1 == batches;
    parallel.set_sync(last);
    net.forward(Net::batch(rank, i), i).backward();
    if (last) {
      net.update();
      if (!zero_in_place) {
        parallel.zero_grad({net.w, net.extra});
      } else {
        for (const at::Tensor& parameter : {net.w, net.extra}) {
          if (parameter.grad().defined()) {
            parameter.mutable_grad().mul_(0.5).zero_();
          }
        }
      }
    }
  }
}

void expect_equal(const Net& net, const Net& expected, const std::string& what) {
  const auto close = [&](const at::Tensor& a, const at::Tensor& b, const char* name) {
    EXPECT_TRUE(at::allclose(a, b, 1e-10, 1e-12)) << what << " " << name << "\n" << a << b;
  };
  close(net.w.detach(), expected.w.detach(), "w");
  close(net.extra.detach(), expected.extra.detach(), "extra");
  close(net.running, expected.running, "running");
  close(net.velocity, expected.velocity, "velocity");
}

struct JoinCase {
  const char* name;
  std::vector<int> batches;  ///< [rank]
  bool divide_by_initial = true;
  int every = 1;
  bool gloo = false;
  bool zero_in_place = false;  ///< As torch's zero_grad(set_to_none=false).
};

class JoinTest : public ::testing::TestWithParam<JoinCase> {};

INSTANTIATE_TEST_SUITE_P(
    Cases,
    JoinTest,
    ::testing::Values(
        JoinCase{"alone", {3}},
        JoinCase{"even", {3, 3}},
        JoinCase{"second_ends_first", {5, 3}},
        JoinCase{"first_ends_first", {3, 5}},
        JoinCase{"by_those_alive", {5, 3}, false},
        JoinCase{"one_has_none", {4, 0, 2}},
        JoinCase{"first_has_none", {0, 4, 2}},
        JoinCase{"one_has_none_by_those_alive", {4, 0, 2}, false},
        JoinCase{"zeroed_in_place", {5, 2}, true, 1, false, true},
        JoinCase{"nobody_has_any", {0, 0}},
        JoinCase{"accumulating", {7, 3}, true, 2},
        JoinCase{"accumulating_three", {7, 1, 4}, false, 3},
        JoinCase{"gloo_two", {5, 3}, true, 1, true},
        JoinCase{"gloo_three", {4, 0, 2}, false, 1, true}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_P(JoinTest, equals_one_process_that_sees_every_batch) {
  const JoinCase& c = GetParam();
  const Net expected = reference(c.batches, c.divide_by_initial, c.every);
  const auto body = [&](Group group) {
    Net net;
    const auto parallel = net.parallel(group);
    const int rank = group.rank();
    run_joined(
        {parallel},
        [&] {
          const int batches = c.batches[static_cast<size_t>(rank)];
          train(net, *parallel, rank, batches, c.every, c.zero_in_place);
        },
        {.divide_by_initial_world_size = c.divide_by_initial},
        [&] { return std::vector<at::Tensor>{net.velocity}; });
    if (group.size() == 1) {
      parallel->zero_grad({net.w, net.extra});
    }
    expect_equal(net, expected, "rank " + std::to_string(rank));
    // The group is in step again, and the models are ordinary ones.
    parallel->set_sync(true);
    parallel->zero_grad({net.w, net.extra});
    net.zero();
    net.forward(Net::batch(0, 0), 0).backward();
    EXPECT_TRUE(net.w.grad().defined());
  };
  const int size = static_cast<int>(c.batches.size());
  if (c.gloo) {
    gloo_ranks(size, body);
  } else if (size == 1) {
    Net net;
    const auto parallel = net.parallel(Group());
    run_joined({parallel}, [&] {
      for (int i = 0; i < c.batches[0]; ++i) {
        net.zero();
        net.forward(Net::batch(0, i), i).backward();
        net.update();
      }
    });
    expect_equal(net, expected, "alone");
  } else {
    ranks(size, body);
  }
}

TEST(Join, what_a_rank_had_accumulated_goes_along) {
  // Rank 1 ends in the middle of a group, without averaging it.
  Net expected;
  for (int i : {0, 1}) {
    (expected.forward(Net::batch(0, i), i) / 2).backward();
  }
  (expected.forward(Net::batch(1, 0), 0) / 2).backward();
  expected.update();
  ranks(2, [&](Group group) {
    Net net;
    const auto parallel = net.parallel(group);
    run_joined({parallel}, [&] {
      parallel->set_sync(false);
      net.forward(Net::batch(group.rank(), 0), 0).backward();
      if (group.rank() == 0) {
        parallel->set_sync(true);
        net.forward(Net::batch(0, 1), 1).backward();
        net.update();
      }
    });
    EXPECT_TRUE(at::allclose(net.w.detach(), expected.w.detach(), 1e-10, 1e-12));
  });
}

TEST(Join, averages_that_are_added_to_are_kept_by_ranks_without_data) {
  // Two averaging backwards before an update, as with sync_each_batch.
  Net expected;
  for (int i : {0, 1}) {
    for (int rank : {0, 1}) {
      if (i == 0 || rank == 0) {
        (expected.forward(Net::batch(rank, i), i) / 2).backward();
      }
    }
  }
  ranks(2, [&](Group group) {
    Net net;
    const auto parallel = net.parallel(group);
    run_joined({parallel}, [&] {
      for (int i = 0; i < (group.rank() == 0 ? 2 : 1); ++i) {
        net.forward(Net::batch(group.rank(), i), i).backward();
      }
      if (group.rank() == 0) {
        EXPECT_TRUE(at::allclose(net.w.grad(), expected.w.grad(), 1e-10, 1e-12));
      }
    });
  });
}

TEST(Join, an_average_clipped_in_place_is_not_sent_again) {
  // Rank 1 ends after an update, with the gradients of it still there.
  Net expected;
  for (int i : {0, 1}) {
    expected.zero();
    for (int rank : {0, 1}) {
      if (i == 0 || rank == 0) {
        (expected.forward(Net::batch(rank, i), i) / 2).backward();
      }
    }
    expected.w.mutable_grad().mul_(0.5);
    expected.update();
  }
  ranks(2, [&](Group group) {
    Net net;
    const auto parallel = net.parallel(group);
    run_joined({parallel}, [&] {
      for (int i = 0; i < (group.rank() == 0 ? 2 : 1); ++i) {
        net.zero();
        net.forward(Net::batch(group.rank(), i), i).backward();
        net.w.mutable_grad().mul_(0.5);
        net.update();
      }
    });
    EXPECT_TRUE(at::allclose(net.w.detach(), expected.w.detach(), 1e-10, 1e-12));
  });
}

TEST(Join, several_models_each_with_its_own_backwards) {
  for (const bool one_loss : {false, true}) {
    const std::vector<int> batches = {4, 2};
    Net first;
    Net second;
    second.w.data().mul_(-0.7);
    const auto losses = [&](Net& a, Net& b, int rank, int i) {
      return std::pair(a.forward(Net::batch(rank, i), i), b.forward(Net::batch(rank, i + 9), i));
    };
    const auto update = [](Net& net) {
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
      Net a;
      Net b;
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

TEST(Join, throws_everywhere_when_the_first_rank_ends_if_asked) {
  std::atomic<int> errors{0};
  std::atomic<int> done{0};
  ranks(3, [&](Group group) {
    Net net;
    const auto parallel = net.parallel(group);
    try {
      run_joined(
          {parallel},
          [&] {
            for (int i = 0; i < (group.rank() == 1 ? 2 : 5); ++i) {
              net.forward(Net::batch(group.rank(), i), i).backward();
              parallel->zero_grad({net.w, net.extra});
              ++done;
            }
          },
          {.throw_on_early_termination = true});
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(group.rank() == 1 ? "this rank" : "another rank"));
      ++errors;
    }
    // Nothing is left under way.
    net.forward(Net::batch(group.rank(), 0), 0).backward();
    EXPECT_TRUE(net.w.grad().defined());
  });
  EXPECT_EQ(errors, 3);
  EXPECT_EQ(done, 6);
}

TEST(Join, even_inputs_do_not_count_as_early_termination) {
  ranks(2, [](Group group) {
    Net net;
    const auto parallel = net.parallel(group);
    run_joined(
        {parallel},
        [&] { train(net, *parallel, group.rank(), 3, 1); },
        {.throw_on_early_termination = true});
  });
}

TEST(Join, an_exception_comes_out_at_once_and_the_model_is_free_again) {
  ranks(2, [](Group group) {
    Net net;
    const auto parallel = net.parallel(group);
    EXPECT_THROW(
        run_joined({parallel}, [] { throw std::runtime_error("from the body"); }),
        std::runtime_error);
    net.forward(Net::batch(group.rank(), 0), 0).backward();
    EXPECT_TRUE(net.w.grad().defined());
  });
}

TEST(Join, refuses_to_nest_and_to_join_nothing) {
  EXPECT_THROW(run_joined({}, [] {}), ConfigError);
  ranks(2, [](Group group) {
    Net net;
    const auto parallel = net.parallel(group);
    EXPECT_THROW(run_joined({parallel}, [&] { run_joined({parallel}, [] {}); }), ConfigError);
  });
}

TEST(Join, works_with_compressed_gradients) {
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
        parallel->zero_grad({w});
        (w * 2).sum().backward();
        const double expected = i < 2 ? 2 : 1;
        EXPECT_NEAR(w.grad().mean().item<double>(), expected, 1e-4);
      }
    });
    EXPECT_EQ(parallel->hook_state().iteration, 5);
  });
}

}  // namespace
}  // namespace lockstep
