// SPDX-License-Identifier: Apache-2.0
// ZeRO++: 4 ranks as 2 hosts of 2.
#include "lockstep/zero/quantize/plus_plus.h"

#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/zero/quantize/quantized_reduction.h"
#include "lockstep/zero/test_counting_transport.h"
#include "lockstep/zero/test_sharding.h"
#include "tests/nets.h"

namespace lockstep::zero {
namespace {

using ::testing::HasSubstr;

constexpr PlusPlusOptions kPlain = {};
constexpr PlusPlusOptions kWeights = {.quantized_weights = true};
constexpr PlusPlusOptions kGradients = {.quantized_gradients = true, .host_size = 2};
constexpr PlusPlusOptions kSecondaries = {.hpz_partition_size = 2};
constexpr PlusPlusOptions kAll = {
    .quantized_weights = true,
    .quantized_gradients = true,
    .hpz_partition_size = 2,
    .host_size = 2};

/// Linear layers, and a number that is used last, so that no layer is here still when backward
/// begins.
struct GainNetImpl : test::TanhStackImpl {
  GainNetImpl(int64_t layers, int64_t width, at::ScalarType dtype = at::kFloat)
      : TanhStackImpl(layers, width, /*bias=*/false) {
    gain = register_parameter("gain", at::ones({1}));
    to(dtype);
  }
  at::Tensor forward(const at::Tensor& x) { return TanhStackImpl::forward(x) * gain; }
  at::Tensor gain;
};
TORCH_MODULE(GainNet);

std::shared_ptr<Sharding> plus_plus_sharding(
    const GainNet& net,
    const Group& group,
    const PlusPlusOptions& plus_plus,
    const ParamCoordinatorOptions& coordinator = {.max_live_elements = 1, .prefetch = false},
    ParamPlacement placement = ParamPlacement::kSharded) {
  return make_sharding(
      named(*net),
      group,
      {.cap_bytes = 1,  // One bucket a parameter.
       .first_cap_bytes = 1,
       .placement = placement,
       .coordinator = coordinator,
       .plus_plus = plus_plus});
}

/// As of test_sharding.h, where every piece must have a gradient.
void update_all(Sharding& sharding, double lr) {
  sharding.finish_parameter_use();
  {
    const c10::AutoGradMode no_grad(false);
    for (const auto& group : sharding.shards()) {
      for (const auto& shard : group) {
        for (at::Tensor shard_slice : shard.shard_slices) {
          shard_slice.sub_(shard_slice.grad() * lr);
        }
      }
    }
  }
  sharding.gather_parameters();
  sharding.drop_gradients();
}

at::Tensor batch_of(int rank, int step, int64_t width, at::ScalarType dtype = at::kFloat) {
  const at::Tensor at = at::arange(8 * width, at::kFloat).reshape({8, width});
  return at::cos(at * (0.37 + 0.11 * rank) + step % 3).to(dtype).requires_grad_();
}

at::Tensor loss_of(GainNet& net, int rank, int step) {
  const at::Tensor x = batch_of(rank, step, 64);
  return (net->forward(x) - x.detach().roll(1, 1) / 2).square().mean();
}

/// All but one of train's units.
constexpr ParamCoordinatorOptions kWithPrefetch = {
    .max_live_elements = 3 * 64 * 64, .prefetch = true};

/// Mean losses over the ranks of some steps.
std::vector<double> plus_plus_losses(const PlusPlusOptions& plus_plus, int steps = 30) {
  std::vector<double> losses(steps, 0);
  std::mutex mutex;
  ranks(4, [&](Group group) {
    GainNet net(3, 64);
    const auto sharding = plus_plus_sharding(net, group, plus_plus, kWithPrefetch);
    for (int step = 0; step < steps; ++step) {
      const at::Tensor loss = loss_of(net, group.rank(), step);
      {
        const std::lock_guard<std::mutex> lock(mutex);
        losses[step] += loss.item<double>() / 4;
      }
      run_backward(*sharding, loss);
      update_all(*sharding, 0.5);
    }
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor here = parameter.detach().clone();
      EXPECT_TRUE(at::equal(here, group.broadcast(here.clone()).wait())) << "equal bits";
    }
    EXPECT_GT(sharding->coordinator()->prefetches(), steps);
  });
  return losses;
}

TEST(PlusPlus, SecondaryShardsAreBitExact) {
  EXPECT_EQ(plus_plus_losses(kPlain), plus_plus_losses(kSecondaries));
  EXPECT_EQ(
      plus_plus_losses(kWeights),
      plus_plus_losses({.quantized_weights = true, .hpz_partition_size = 2}));
}

TEST(PlusPlus, LossesAreCloseToThoseOfStage3) {
  const std::vector<double> expected = plus_plus_losses(kPlain);
  EXPECT_LT(expected.back(), 0.8 * expected.front()) << "or equal losses say nothing";
  const PlusPlusOptions one_hop = {.quantized_gradients = true};
  for (const PlusPlusOptions& options : {kWeights, kGradients, one_hop, kAll}) {
    const std::vector<double> losses = plus_plus_losses(options);
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], 0.02 * expected[0])
          << step << " quantized weights " << options.quantized_weights << " gradients "
          << options.quantized_gradients;
    }
    EXPECT_NE(losses.back(), expected.back()) << "nothing was rounded";
  }
}

TEST(PlusPlus, WorksOverSocketsAndSharedMemory) {
  const auto body = [](Group group) {
    GainNet net(3, 64);
    const auto sharding = plus_plus_sharding(net, group, kAll, kWithPrefetch);
    for (int step = 0; step < 4; ++step) {
      run_backward(*sharding, loss_of(net, group.rank(), step));
      update_all(*sharding, 0.1);
    }
    const at::Tensor here = net->parameters()[0].detach().clone();
    EXPECT_TRUE(at::equal(here, group.broadcast(here.clone()).wait()));
  };
  gloo_ranks(4, body);
  shm_ranks(4, body);
  two_host_ranks(4, body);
}

/// Bytes between hosts, of the third of some steps.
int64_t bytes_of_a_step(
    const PlusPlusOptions& plus_plus, at::ScalarType dtype, int64_t layers, int64_t width) {
  HostTraffic traffic(2);
  ranks(4, [&](Group group) {
    GainNet net(layers, width, dtype);
    const auto sharding = plus_plus_sharding(net, counted(group, traffic), plus_plus);
    for (int step = 0; step < 3; ++step) {
      group.barrier();
      if (group.rank() == 0) {
        traffic.reset();
      }
      group.barrier();
      const at::Tensor x = batch_of(group.rank(), step, width, dtype);
      run_backward(*sharding, net->forward(x).square().mean());
      update_all(*sharding, 0.1);
    }
  });
  return traffic.total();
}

TEST(PlusPlus, AStepSendsThreeQuartersOfTheParametersBetweenHostsInsteadOfThree) {
  constexpr int64_t kLayers = 6;
  constexpr int64_t kWidth = 256;
  // Of the parameters in 16 bits. What is more is padding, scales, and what the rounds say.
  const double m = 2.0 * kLayers * kWidth * kWidth;
  const auto in_m = [&](const PlusPlusOptions& options, at::ScalarType dtype) {
    const double times = static_cast<double>(bytes_of_a_step(options, dtype, kLayers, kWidth)) / m;
    RecordProperty(
        fmt::format(
            "{}_qwz{}_qgz{}_hpz{}_host{}",
            c10::toString(dtype),
            options.quantized_weights,
            options.quantized_gradients,
            options.hpz_partition_size,
            options.host_size),
        std::to_string(times));
    return times;
  };
  EXPECT_NEAR(in_m(kPlain, at::kBFloat16), 3, 0.02);
  EXPECT_NEAR(in_m(kAll, at::kBFloat16), 0.75, 0.02);
  EXPECT_NEAR(in_m(kPlain, at::kFloat), 6, 0.02) << "fp32 has twice the bytes";
  EXPECT_NEAR(in_m(kAll, at::kFloat), 0.75, 0.02) << "and travels in as many bits";
  EXPECT_NEAR(in_m(kWeights, at::kBFloat16), 0.5 + 0.5 + 1, 0.02);
  EXPECT_NEAR(in_m(kSecondaries, at::kBFloat16), 1 + 0 + 1, 0.02);
  EXPECT_NEAR(in_m(kGradients, at::kBFloat16), 1 + 1 + 0.25, 0.02);
  // In one hop, each of a host's two ranks sends its own.
  EXPECT_NEAR(in_m({.quantized_gradients = true}, at::kBFloat16), 1 + 1 + 0.5, 0.02);
}

TEST(PlusPlus, BackwardGathersStayWithinAHost) {
  HostTraffic traffic(2);
  ranks(4, [&](Group group) {
    GainNet net(4, 64);
    const auto sharding = plus_plus_sharding(net, counted(group, traffic), kSecondaries);
    const ParamCoordinator& coordinator = *sharding->coordinator();
    // The second backward adds to the first's gradients: even its forward stays close.
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      const at::Tensor loss = loss_of(net, group.rank(), 0);
      if (micro_step == 0) {
        EXPECT_EQ(coordinator.secondary_gathers(), 0);
      }
      group.barrier();
      const int64_t before = traffic.of(comm::Op::kAllGather, at::kFloat);
      EXPECT_GT(before, 0);
      group.barrier();
      run_backward(*sharding, loss);
      EXPECT_EQ(traffic.of(comm::Op::kAllGather, at::kFloat), before);
    }
    EXPECT_EQ(coordinator.gathers() - coordinator.secondary_gathers(), 5)
        << "each unit once from all";
    update_all(*sharding, 0.1);
    const int64_t gathers = coordinator.gathers();
    const int64_t close = coordinator.secondary_gathers();
    loss_of(net, group.rank(), 1);
    EXPECT_EQ(coordinator.secondary_gathers(), close) << "old after an update";
    EXPECT_EQ(coordinator.gathers(), gathers + 5);
  });
}

TEST(PlusPlus, SecondaryShardsAreDroppedByWritesToParameters) {
  ranks(4, [](Group group) {
    GainNet net(3, 64);
    const auto sharding = plus_plus_sharding(net, group, kSecondaries);
    loss_of(net, group.rank(), 0);
    {
      const torch::NoGradGuard no_grad;
      net->parameters()[1].fill_(3);
    }
    loss_of(net, group.rank(), 0);
    EXPECT_TRUE(at::equal(net->parameters()[1], at::full({64, 64}, 3.0)));
  });
}

TEST(PlusPlus, RanksMayUseOtherParametersThanOthers) {
  ranks(4, [](Group group) {
    GainNet net(5, 64);
    const auto sharding = plus_plus_sharding(net, group, kAll);
    for (int step = 0; step < 4; ++step) {
      at::Tensor x = batch_of(group.rank(), step, 64);
      for (int i = 0; i < 5; ++i) {
        if ((i + step) % 4 != group.rank()) {
          x = net->stack[i]->as<torch::nn::Linear>()->forward(x);
        }
      }
      run_backward(*sharding, (x * net->gain).square().mean());
      update_all(*sharding, 0.01);
    }
    const at::Tensor first = net->parameters()[0].detach().clone();
    EXPECT_TRUE(at::equal(first, group.broadcast(first.clone()).wait()));
  });
}

TEST(PlusPlus, UpdatesAndSavesExactValuesThoughItComputesWithRoundedOnes) {
  ranks(4, [](Group group) {
    const GainNet alone(3, 64);
    GainNet net(3, 64);
    const auto sharding = plus_plus_sharding(net, group, kWeights);
    run_backward(*sharding, loss_of(net, group.rank(), 0));
    update_all(*sharding, 0);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor expected = alone->stack->parameters()[i].detach();
      const at::Tensor parameter = net->stack->parameters()[i];
      const double error = (parameter.detach() - expected).abs().max().item<double>();
      EXPECT_GT(error, 0);
      EXPECT_LE(error, expected.abs().max().item<double>() / 127 / 2 * 1.001);
      const ExactValues exact(sharding->coordinator());
      EXPECT_TRUE(at::equal(parameter, expected));
    }
  });
}

TEST(PlusPlus, WritingToAPartLeavesTheRestExact) {
  ranks(4, [](Group group) {
    const GainNet alone(2, 64);
    GainNet net(2, 64);
    const auto sharding = plus_plus_sharding(net, group, kWeights);
    {
      const torch::NoGradGuard no_grad;
      net->parameters()[1].narrow(0, 3, 1).fill_(0.125);
    }
    at::Tensor expected = alone->parameters()[1].detach().clone();
    expected.narrow(0, 3, 1).fill_(0.125);
    const ExactValues exact(sharding->coordinator());
    EXPECT_TRUE(at::equal(net->parameters()[1], expected));
  });
}

TEST(PlusPlus, GradientsThatAreNotFiniteStayVisible) {
  ranks(4, [](Group group) {
    GainNet net(2, 64);
    const auto sharding = plus_plus_sharding(net, group, kAll);
    const double factor = group.rank() == 1 ? std::numeric_limits<double>::infinity() : 1;
    run_backward(*sharding, loss_of(net, group.rank(), 0) * factor);
    for (const auto& [unused, shard_slice] : sharding->slices().all()) {
      EXPECT_FALSE(at::isfinite(shard_slice.values.grad()).any().item<bool>());
    }
  });
}

TEST(QuantizedReduction, EveryRankGetsTheAverageOfItsShard) {
  for (const int locals : {1, 2, 3}) {
    for (const int hosts : {1, 2}) {
      ranks(locals * hosts, [&](Group group) {
        const int rank = group.rank();
        const Group within = group.split(rank / locals, rank);
        const Group between = group.split(rank % locals, rank);
        // Part p of rank r is p + 1 times r + 1: equal numbers are not rounded.
        const at::Tensor gradients =
            at::arange(1, group.size() + 1, at::kFloat).repeat_interleave(640) * (rank + 1);
        QuantizedReduction reduction(within, between, gradients);
        at::Tensor average = at::empty({640});
        reduction.finish(average);
        const double expected = (rank + 1) * (group.size() + 1) / 2.0;
        EXPECT_TRUE(at::allclose(average, at::full({640}, expected), 1e-6)) << expected;
      });
    }
  }
}

TEST(PlusPlus, IndivisibleSizesAndStagesBefore3AreRefused) {
  ranks(4, [](Group group) {
    const auto sharding_error = [&](const PlusPlusOptions& options, ParamPlacement placement) {
      return error_of([&] { plus_plus_sharding(GainNet(1, 64), group, options, {}, placement); });
    };
    EXPECT_THAT(
        sharding_error({.hpz_partition_size = 3}, ParamPlacement::kSharded),
        HasSubstr("got 3, expected a divisor of 4"));
    EXPECT_THAT(
        sharding_error({.quantized_gradients = true, .host_size = 5}, ParamPlacement::kSharded),
        HasSubstr("host_size"));
    EXPECT_THAT(sharding_error(kWeights, ParamPlacement::kReplicated), HasSubstr("use stage 3"));
  });
}

}  // namespace
}  // namespace lockstep::zero
