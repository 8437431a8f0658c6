// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/sync/local_sgd/local_sgd.h"
#include "lockstep/sync/local_sgd/test_local_net.h"
#include "lockstep/sync/test_gradients.h"

namespace lockstep {
namespace {

TEST(LocalSgd, AveragesFloatBuffersAndTakesOthersFromRank0) {
  for (const bool average_buffers : {true, false}) {
    ranks(2, [&](Group group) {
      const LocalNet net;
      const auto parallel = data_parallel(net, group);
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

TEST(LocalSgd, AveragesThePassedModel) {
  ranks(2, [](Group group) {
    const LocalNet net;
    const auto parallel = data_parallel(net, group);
    const at::Tensor momentum = at::full({3}, group.rank() * 4.0, at::kDouble);
    const at::Tensor step_count = at::full({}, group.rank() + 7, at::kLong);
    LocalSgdCore local(
        parallel, net.parameters(), net.buffers(), group, {.local_sgd_steps = 2}, [&] {
          return NamedTensors{{"momentum", momentum}, {"step", step_count}};
        });
    local.step();
    EXPECT_EQ(momentum[0].item<double>(), group.rank() * 4.0);
    local.step();
    EXPECT_EQ(momentum[0].item<double>(), 2.0);
    EXPECT_EQ(step_count.item<int64_t>(), 7);
  });
}

TEST(LocalSgd, AveragesByNameTheModelsThatEveryRankPasses) {
  ranks(3, [](Group group) {
    const LocalNet net;
    const auto parallel = data_parallel(net, group);
    const double mine = group.rank();
    // Rank 1 has one more, rank 2 one less, and in another order; "a" is another one there.
    const std::vector<NamedTensors> by_rank = {
        {{"a", at::full({2}, mine)}, {"b", at::full({3}, mine)}, {"c", at::full({2}, mine)}},
        {{"a", at::full({2}, mine)},
         {"b", at::full({3}, mine)},
         {"more", at::full({4}, mine)},
         {"c", at::full({2}, mine)}},
        {{"c", at::full({2}, mine)}, {"a", at::full({5}, mine)}}};
    const NamedTensors& along = by_rank[static_cast<size_t>(group.rank())];
    LocalSgdCore local(
        parallel, net.parameters(), net.buffers(), group, {.local_sgd_steps = 2}, [&] {
          return along;
        });
    local.step();
    EXPECT_TRUE(local.step());
    for (const auto& [name, tensor] : along) {
      const double expected = name == "c" ? 1 : mine;
      EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, expected))) << name << tensor;
    }
  });
}

TEST(LocalSgd, RefusesTwoTensorsOfOneName) {
  EXPECT_THROW(
      ranks(
          2,
          [](Group group) {
            const LocalNet net;
            LocalSgdCore local(
                data_parallel(net, group), net.parameters(), net.buffers(), group, {}, [] {
                  return NamedTensors{{"p", at::ones({2})}, {"p", at::ones({3})}};
                });
            local.step();
            local.finish();
          }),
      ConfigError);
}

/// Moves by decay and momentum alone once it has state, as long as there is a gradient.
struct AdamW {
  std::vector<at::Tensor> first = std::vector<at::Tensor>(2);
  std::vector<at::Tensor> second = std::vector<at::Tensor>(2);
  std::vector<int> count = std::vector<int>(2);

  void step(const std::vector<at::Tensor>& parameters) {
    const c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].grad();
      if (!gradient.defined()) {
        continue;
      }
      if (!first[i].defined()) {
        first[i] = at::zeros_like(gradient);
        second[i] = at::zeros_like(gradient);
      }
      ++count[i];
      first[i].mul_(0.9).add_(gradient, 0.1);
      second[i].mul_(0.99).add_(gradient.square(), 0.01);
      const at::Tensor scale = (second[i] / (1 - std::pow(0.99, count[i]))).sqrt() + 1e-8;
      at::Tensor values = parameters[i].data();
      values.mul_(1 - 0.05 * 0.1);
      values.sub_(first[i] / (1 - std::pow(0.9, count[i])) / scale, 0.05);
    }
  }
};

TEST(LocalSgd, AParameterUsedOnceIsNotUpdatedAfterwardsAsInOneProcess) {
  const auto parameters = [] {
    return std::vector<at::Tensor>{
        at::linspace(-1, 1, 8).requires_grad_(), at::linspace(0.3, 2, 8).requires_grad_()};
  };
  const auto loss = [](const std::vector<at::Tensor>& p, int step) {
    const at::Tensor y = step == 0 ? p[0] * p[1] : at::sin(p[0] + step);
    return y.square().sum();
  };
  const int steps = 5;
  const std::vector<at::Tensor> alone = parameters();
  AdamW alone_adam;
  for (int step = 0; step < steps; ++step) {
    for (const at::Tensor& parameter : alone) {
      parameter.mutable_grad().reset();
    }
    loss(alone, step).backward();
    alone_adam.step(alone);
  }
  // A warm-up of one ends between the zeroing and the first backward that stays local.
  for (const int64_t warmup_steps : {0, 1}) {
    ranks(2, [&](Group group) {
      const std::vector<at::Tensor> net = parameters();
      const NamedTensors named = {{"always", net[0]}, {"once", net[1]}};
      const auto parallel =
          std::make_shared<DataParallel>(named, NamedTensors(), group, DataParallelOptions());
      LocalSgdCore local(
          parallel, named, {}, group, {.local_sgd_steps = 3, .warmup_steps = warmup_steps});
      AdamW adam;
      for (int step = 0; step < steps; ++step) {
        loss(net, step).backward();
        adam.step(net);
        zero_grad(net);
        local.step();
      }
      local.finish();
      EXPECT_TRUE(at::equal(net[0].data(), alone[0].data())) << warmup_steps;
      EXPECT_TRUE(at::equal(net[1].data(), alone[1].data())) << warmup_steps;
    });
  }
}

}  // namespace
}  // namespace lockstep
