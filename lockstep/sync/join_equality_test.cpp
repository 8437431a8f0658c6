// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/test_gradients.h"
#include "lockstep/sync/test_join.h"
#include "lockstep/sync/test_join_net.h"

namespace lockstep {
namespace {

/// One process that does what the ranks together should: step s takes batch s of every rank that
/// has one. `every`: accumulation, counted by each rank on its own and cut short at its end.
JoinNet join_reference(const std::vector<int>& batches, bool divide_by_initial, int every) {
  JoinNet net;
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
        (net.forward(JoinNet::batch(static_cast<int>(rank), i), i) / divisor).backward();
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

void expect_equal(const JoinNet& net, const JoinNet& expected, const std::string& what) {
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

TEST_P(JoinTest, EqualsOneProcessThatSeesEveryBatch) {
  const JoinCase& c = GetParam();
  const JoinNet expected = join_reference(c.batches, c.divide_by_initial, c.every);
  const auto body = [&](Group group) {
    JoinNet net;
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
      net.zero();
    }
    expect_equal(net, expected, "rank " + std::to_string(rank));
    // The group is in step again, and the models are ordinary ones.
    parallel->set_sync(true);
    net.zero();
    net.zero();
    net.forward(JoinNet::batch(0, 0), 0).backward();
    EXPECT_TRUE(net.w.grad().defined());
  };
  const int size = static_cast<int>(c.batches.size());
  if (c.gloo) {
    gloo_ranks(size, body);
  } else if (size == 1) {
    JoinNet net;
    const auto parallel = net.parallel(Group());
    run_joined({parallel}, [&] {
      for (int i = 0; i < c.batches[0]; ++i) {
        net.zero();
        net.forward(JoinNet::batch(0, i), i).backward();
        net.update();
      }
    });
    expect_equal(net, expected, "alone");
  } else {
    ranks(size, body);
  }
}

}  // namespace
}  // namespace lockstep
