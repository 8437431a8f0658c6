// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/sharding.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/test_counting_transport.h"
#include "lockstep/zero/test_sharding.h"

namespace lockstep::zero {
namespace {

using ::testing::HasSubstr;

at::Tensor leaf(at::IntArrayRef sizes, double first) {
  const int64_t numel = c10::multiply_integers(sizes);
  return (at::arange(numel, at::kDouble).to(at::kFloat) / 100 + first)
      .reshape(sizes)
      .set_requires_grad(true);
}

/// A model of three parameters, one of them frozen, in one optimizer group.
struct ThreeWeightsModel {
  at::Tensor a = leaf({30, 7}, 1);
  at::Tensor b = leaf({11}, 2);
  at::Tensor c = leaf({100}, 3);
  at::Tensor frozen = leaf({4}, 4).set_requires_grad(false);
  NamedTensors named() const { return {{"a", a}, {"b", b}, {"c", c}, {"frozen", frozen}}; }
  std::vector<at::Tensor> trained() const { return {a, b, c}; }
  at::Tensor loss(double factor) const {
    return (a.square().sum() + b.square().sum() + c.square().sum()) * factor;
  }
};

std::shared_ptr<Sharding> shard_model(
    const ThreeWeightsModel& model, const Group& group, const ShardingOptions& options = {}) {
  return make_sharding(model.named(), group, options, {}, {model.trained()});
}

/// What all ranks' pieces have of a parameter, put together.
at::Tensor whole(
    Group& group, const Sharding& sharding, const at::Tensor& parameter, bool gradient) {
  at::Tensor all = at::zeros({parameter.numel()});
  for (const at::Tensor& shard_slice : sharding.slices().of({parameter})) {
    const ShardSlice& of = *sharding.slices().find(shard_slice);
    all.narrow(0, of.begin, shard_slice.numel())
        .copy_(gradient ? shard_slice.grad() : shard_slice.detach());
  }
  return group.all_reduce(all).wait().reshape(parameter.sizes());
}

TEST(Sharding, EveryElementHasOneOwnerAndItsValue) {
  for (const int64_t cap : {int64_t{1}, int64_t{25} << 20}) {
    ranks(3, [cap](Group group) {
      ThreeWeightsModel model;
      const at::Tensor before = model.a.detach().clone();
      const auto sharding = shard_model(model, group, {.cap_bytes = cap, .first_cap_bytes = cap});
      EXPECT_TRUE(at::equal(model.a, before));
      for (const at::Tensor& parameter : model.trained()) {
        EXPECT_TRUE(at::equal(whole(group, *sharding, parameter, false), parameter));
        EXPECT_LE(sharding->slices().of({parameter}).size(), 1U);
      }
      EXPECT_EQ(sharding->slices().find(model.a), nullptr);
    });
  }
}

TEST(Sharding, SlicesHaveTheAverageGradientAndParametersAPlaceholder) {
  ranks(3, [](Group group) {
    ThreeWeightsModel model;
    const auto sharding = shard_model(model, group);
    run_backward(*sharding, model.loss(group.rank() + 1));  // Factors 1, 2, 3: 2 in the mean.
    for (const at::Tensor& parameter : model.trained()) {
      EXPECT_TRUE(is_gradient_placeholder(parameter.grad()));
      EXPECT_TRUE(
          at::allclose(whole(group, *sharding, parameter, true), 4 * parameter.detach(), 1e-6));
    }
  });
}

TEST(Sharding, AveragesAddUpInTheShardAndIncludeLocalGradients) {
  ranks(2, [](Group group) {
    ThreeWeightsModel model;
    const auto sharding = shard_model(model, group);
    run_backward(*sharding, model.loss(1));
    run_backward(*sharding, model.loss(2));
    EXPECT_TRUE(at::allclose(whole(group, *sharding, model.a, true), 6 * model.a.detach(), 1e-6));
    sharding->drop_gradients();
    sharding->set_sync(false);
    run_backward(*sharding, model.loss(group.rank()));
    EXPECT_TRUE(model.a.grad().defined());
    sharding->set_sync(true);
    run_backward(*sharding, model.loss(1));
    EXPECT_TRUE(at::allclose(whole(group, *sharding, model.a, true), 3 * model.a.detach(), 1e-6));
  });
}

TEST(Sharding, UnusedParametersHaveNoGradientAndOnesUsedOnOneRankHaveZerosElsewhere) {
  ranks(2, [](Group group) {
    ThreeWeightsModel model;
    const auto sharding = shard_model(model, group, {.cap_bytes = 1, .first_cap_bytes = 1});
    at::Tensor loss = model.a.sum();
    if (group.rank() == 1) {
      loss = loss + model.c.sum();
    }
    run_backward(*sharding, loss);
    for (const at::Tensor& shard_slice : sharding->slices().of({model.b})) {
      EXPECT_FALSE(shard_slice.grad().defined());
    }
    EXPECT_TRUE(at::equal(whole(group, *sharding, model.c, true), at::full({100}, 0.5)));
  });
}

TEST(Sharding, ARankWithoutGradientsContributesZeros) {
  ranks(2, [](Group group) {
    ThreeWeightsModel model;
    const auto sharding = shard_model(model, group);
    sharding->begin_backward();
    if (group.rank() == 0) {
      model.loss(1).backward();
    }
    sharding->finish_backward();
    EXPECT_TRUE(at::allclose(whole(group, *sharding, model.b, true), model.b.detach(), 1e-6));
  });
}

TEST(Sharding, AnUpdateOfTheSlicesReachesAllRanks) {
  ranks(3, [](Group group) {
    ThreeWeightsModel model;
    const auto sharding = shard_model(model, group);
    const at::Tensor before = model.a.detach().clone();
    const auto version = model.a._version();
    {
      const c10::AutoGradMode no_grad(false);
      for (at::Tensor& shard_slice : sharding->slices().of(model.trained())) {
        shard_slice.add_(1);
      }
    }
    sharding->gather_parameters();
    EXPECT_TRUE(at::equal(model.a, before + 1));
    EXPECT_GT(model.a._version(), version);
  });
}

TEST(Sharding, TheNormCoversAllSlices) {
  ranks(2, [](Group group) {
    ThreeWeightsModel model;
    const auto sharding = shard_model(model, group);
    const at::Tensor own = at::full({}, group.rank() == 0 ? 3.0 : 4.0);
    EXPECT_EQ(sharding->norm_over_ranks(own, 2).item<double>(), 5);
    EXPECT_EQ(sharding->norm_over_ranks(own, 1).item<double>(), 7);
    EXPECT_EQ(sharding->norm_over_ranks(own, INFINITY).item<double>(), 4);
  });
}

TEST(Sharding, NamesTheParameterThatNoOptimizerTrains) {
  ranks(2, [](Group group) {
    ThreeWeightsModel model;
    try {
      Sharding(model.named(), NamedTensors(), {{model.a, model.b}}, std::move(group), {});
      FAIL() << "nobody trains c";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("c requires gradients, but no optimizer"));
    }
  });
}

TEST(Sharding, AUnitHasItsOwnBucket) {
  ranks(2, [](Group group) {
    const ThreeWeightsModel model;
    const auto buckets = [&](int64_t cap, const std::vector<std::vector<at::Tensor>>& units) {
      return shard_model(model, group, {.cap_bytes = cap, .first_cap_bytes = cap, .units = units})
          ->shards()[0]
          .size();
    };
    EXPECT_EQ(buckets(1, {}), 3U);
    EXPECT_EQ(buckets(1, {{model.a, model.b}}), 2U);
    EXPECT_EQ(buckets(1 << 20, {}), 1U);
    EXPECT_EQ(buckets(1 << 20, {{model.b}}), 3U) << "what comes before and after is apart";
    EXPECT_EQ(buckets(1 << 20, {{model.b}, {model.c}}), 3U);
  });
}

/// Rajbhandari et al., section 7: as much as data parallel, and half as much again in stage 3.
TEST(Sharding, AStepSendsTwoParametersWorthAndThreeInStage3) {
  constexpr int64_t kLayers = 12;
  constexpr int64_t kElements = 128 * 128;
  for (const int world : {2, 4}) {
    for (const ParamPlacement placement : {ParamPlacement::kReplicated, ParamPlacement::kSharded}) {
      HostTraffic traffic(1);
      ranks(world, [&](Group group) {
        std::vector<at::Tensor> weights;
        NamedTensors named;
        for (int64_t i = 0; i < kLayers; ++i) {
          weights.push_back(leaf({128, 128}, 0.1 * static_cast<double>(i)));
          named.push_back({std::to_string(i), weights.back()});
        }
        const auto sharding = make_sharding(
            named,
            counted(group, traffic),
            {.cap_bytes = kElements * 4,
             .first_cap_bytes = kElements * 4,
             .placement = placement,
             .coordinator = {.max_live_elements = 2 * kElements}});
        for (int step = 0; step < 3; ++step) {
          group.barrier();
          if (group.rank() == 0) {
            traffic.reset();
          }
          group.barrier();
          at::Tensor x = at::ones({1, 128});
          for (const at::Tensor& weight : weights) {
            x = at::matmul(x, weight).tanh();
          }
          run_backward(*sharding, x.sum());
          sharding->finish_parameter_use();
          sharding->gather_parameters();
          sharding->drop_gradients();
        }
      });
      const double m = 4.0 * kLayers * kElements * (world - 1);
      // The last two layers are still here when backward begins, which does not need the first.
      const double times = placement == ParamPlacement::kReplicated ? 2 : 3 - 3.0 / kLayers;
      EXPECT_NEAR(static_cast<double>(traffic.total()) / m, times, 0.03) << world;
    }
  }
}

}  // namespace
}  // namespace lockstep::zero
