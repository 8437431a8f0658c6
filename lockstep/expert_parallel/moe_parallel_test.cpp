// SPDX-License-Identifier: Apache-2.0
// Ranks as threads against one process with all experts on the global batch.
#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/expert_parallel/moe.h"
#include "lockstep/expert_parallel/test_golden.h"
#include "lockstep/expert_parallel/test_transport.h"

namespace lockstep::expert_parallel {
namespace {

using nn::MoE;
using nn::MoEOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kHidden = 8;
constexpr int64_t kExperts = 4;
constexpr int64_t kTokens = 24;  ///< Of all ranks together.
constexpr int kSteps = 20;

struct NetImpl : torch::nn::Module {
  NetImpl(const MoEOptions& options, const Group& group, at::ScalarType dtype) {
    in = register_module("in", torch::nn::Linear(6, kHidden));
    first = register_module("first", MoE(options, group));
    second = register_module("second", MoE(options, group));
    out = register_module("out", torch::nn::Linear(kHidden, 3));
    to(dtype);
    const at::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      int64_t sum = 0;
      for (const char letter : item.key()) {
        sum = (sum * 31 + letter) % 1009;
      }
      // Routers have weights large enough that tokens go to different experts.
      const double scale = item.key().ends_with("gate.weight") ? 400 : 1300;
      item.value().copy_(made(item.value().sizes(), sum, scale, dtype));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = in(x);
    h = h + first(h);
    h = h + second(h);
    return out(h);
  }
  torch::nn::Linear in{nullptr};
  MoE first{nullptr}, second{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Net);

MoEOptions dropless(at::ScalarType dtype) {
  MoEOptions options{.hidden_size = kHidden, .num_experts = kExperts, .intermediate_size = 12};
  options.grouped_mm = dtype == at::kFloat;
  return options;
}

struct Training {
  at::ScalarType dtype = at::kDouble;
  int ranks = 1;
  int expert_ranks = 1;
  /// The two negative controls: experts' gradients without their factor, and one all_to_all that
  /// returns its own input (of those of a step: see kCombine).
  bool average_expert_gradients = true;
  int64_t left_out = -1;
  bool uneven = false;  ///< Rank 0 gets no tokens, and the last rank those of two.
};

using Parameters = std::map<std::string, at::Tensor>;

/// Trains kSteps of SGD; returns the parameters of all ranks together.
///
/// The loss of a rank is the sum over its tokens, divided by the mean number of tokens of a rank:
/// the mean loss of its tokens if all ranks have equally many.
Parameters train(const Training& it) {
  Parameters all;
  std::mutex mutex;
  ranks(it.ranks, [&](Group world) {
    const int replicas = it.ranks / it.expert_ranks;
    Group experts = world.split(world.rank() / it.expert_ranks);
    Group same_experts = world.split(world.rank() % it.expert_ranks);
    WatchedOperations operations;
    operations.left_out = it.left_out;
    const Group expert_group = it.expert_ranks > 1 ? watched(experts, operations) : Group();
    MoEOptions options = dropless(it.dtype);
    options.average_expert_gradients = it.average_expert_gradients;
    Net net(options, expert_group, it.dtype);
    Parameters of_experts;
    for (const NamedTensor& parameter : expert_parameters(*net)) {
      of_experts[parameter.name] = parameter.tensor;
    }
    const int64_t share = kTokens / it.ranks;
    int64_t begin = world.rank() * share;
    int64_t end = begin + share;
    if (it.uneven) {
      begin = std::max<int64_t>(0, world.rank() - 1) * share;
      end = world.rank() == 0 ? 0 : world.rank() == it.ranks - 1 ? kTokens : begin + share;
    }
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor x =
          made({kTokens, 6}, int64_t{50} * step, 400, it.dtype).slice(0, begin, end);
      const at::Tensor y =
          made({kTokens, 3}, int64_t{31} * step, 400, it.dtype).slice(0, begin, end);
      net->zero_grad();
      const at::Tensor error = (net(x) - y).square().sum() / (3 * share);
      const at::Tensor balance =
          load_balancing_loss({net->first->routing(), net->second->routing()}, world);
      (error + 0.05 * balance).backward();
      const at::NoGradGuard no_grad;
      for (auto& item : net->named_parameters()) {
        ASSERT_TRUE(item.value().grad().defined()) << item.key();
        Group& group = of_experts.contains(item.key()) ? same_experts : world;
        const at::Tensor gradient =
            group.all_reduce(item.value().grad().clone(), ReduceOp::kAvg).wait();
        item.value().sub_(gradient, 0.3);
      }
    }
    if (it.expert_ranks > 1) {
      // Two layers, each with four all_to_alls, and one exchange of counts.
      EXPECT_EQ(operations.sums[comm::Op::kAllToAll].operations, kSteps * 8);
      EXPECT_EQ(operations.sums[comm::Op::kAllGather].operations, kSteps * 2 + 2);
    }
    EXPECT_EQ(same_experts.size(), replicas);
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& item : net->named_parameters()) {
      const at::Tensor value = item.value().detach().clone();
      const auto [found, is_new] = all.emplace(item.key(), value);
      if (!is_new) {
        EXPECT_LT(difference(found->second, value), 1e-12) << item.key() << " of two ranks";
      }
    }
  });
  return all;
}

double largest_difference(const Parameters& got, const Parameters& expected) {
  double largest = 0;
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [name, value] : expected) {
    largest = std::max(largest, difference(got.at(name), value));
  }
  return largest;
}

const Parameters& one_process(at::ScalarType dtype) {
  static const Parameters in_float = train({.dtype = at::kFloat});
  static const Parameters in_double = train({.dtype = at::kDouble});
  return dtype == at::kFloat ? in_float : in_double;
}

class ExpertRanks : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(ExpertRanks, TrainAsOneProcessOnTheGlobalBatch) {
  const auto [count, expert_ranks] = GetParam();
  for (const bool uneven : {false, true}) {
    const Training training{.ranks = count, .expert_ranks = expert_ranks, .uneven = uneven};
    EXPECT_LT(largest_difference(train(training), one_process(at::kDouble)), 1e-12);
  }
  const Training in_float{.dtype = at::kFloat, .ranks = count, .expert_ranks = expert_ranks};
  EXPECT_LT(largest_difference(train(in_float), one_process(at::kFloat)), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    MoE,
    ExpertRanks,
    ::testing::Values(
        std::pair{2, 1}, std::pair{2, 2}, std::pair{4, 1}, std::pair{4, 2}, std::pair{4, 4}),
    [](const auto& it) {
      return std::to_string(it.param.first) + "RanksEp" + std::to_string(it.param.second);
    });

TEST(MoEParallel, TrainsOtherParametersWithoutTheFactorOfExpertGradients) {
  const Training training{.ranks = 4, .expert_ranks = 2, .average_expert_gradients = false};
  EXPECT_GT(largest_difference(train(training), one_process(at::kDouble)), 1e-3);
}

TEST(MoEParallel, TrainsOtherParametersIfAnyAllToAllIsLeftOut) {
  // A step has eight: dispatch and combine of two layers, and their backwards in reverse order.
  for (int64_t i = 0; i < 8; ++i) {
    const Training training{.ranks = 2, .expert_ranks = 2, .left_out = i};
    EXPECT_GT(largest_difference(train(training), one_process(at::kDouble)), 1e-6)
        << "all_to_all " << i;
  }
}

TEST(MoEParallel, SendsFourAllToAllsOfTheLargestPartForEachLayer) {
  ranks(2, [](const Group& plain) {
    WatchedOperations operations;
    const Group group = watched(plain, operations);
    MoE layer(dropless(at::kFloat), group);
    operations.sums.clear();
    const at::Tensor input = made({10 + 3 * plain.rank(), kHidden}, 20, 300).requires_grad_();
    layer(input).sum().backward();
    const at::Tensor counts = at::stack(
        {layer->routing().exp_counts.slice(0, 0, 2).sum(),
         layer->routing().exp_counts.slice(0, 2, 4).sum()});
    const auto largest =
        Group(plain).all_reduce(counts.max().clone(), ReduceOp::kMax).wait().item<int64_t>();
    EXPECT_EQ(operations.sums.size(), 2);
    EXPECT_EQ(operations.sums[comm::Op::kAllToAll].operations, 4);
    EXPECT_EQ(operations.sums[comm::Op::kAllToAll].bytes, largest * kHidden * 4 * 2 * 4);
    EXPECT_EQ(operations.sums[comm::Op::kAllGather].operations, 1);
    EXPECT_EQ(operations.sums[comm::Op::kAllGather].bytes, kExperts * 8);
  });
}

TEST(MoEParallel, LeavesExpertsThatNoTokenChoosesWithZeroGradients) {
  ranks(2, [](Group group) {
    MoE layer(dropless(at::kFloat), group);
    const at::Tensor input = at::ones({group.rank() == 0 ? 3 : 0, kHidden}).requires_grad_();
    {
      const at::NoGradGuard no_grad;
      // All tokens choose experts 0 and 1, which are rank 0's.
      layer->named_parameters()["gate.weight"].copy_(
          at::tensor({2.0F, 1.0F, 0.0F, -1.0F}).unsqueeze(1).expand({4, kHidden}));
    }
    layer(input).sum().backward();
    EXPECT_TRUE(input.grad().defined());
    for (const NamedTensor& parameter : expert_parameters(*layer)) {
      ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
      const bool is_zero = parameter.tensor.grad().abs().max().item<float>() == 0;
      EXPECT_EQ(is_zero, group.rank() == 1) << parameter.name;
    }
  });
}

TEST(MoEParallel, InitializesEachExpertAlikeForEveryNumberOfRanks) {
  Parameters whole;
  at::manual_seed(7);
  MoE alone(dropless(at::kFloat));
  for (const NamedTensor& parameter : expert_parameters(*alone)) {
    whole[parameter.name] = parameter.tensor;
  }
  EXPECT_FALSE(whole["experts.0.w1.weight"].equal(whole["experts.1.w1.weight"]));
  for (const int size : {2, 4}) {
    at::manual_seed(7);
    // Ranks that are threads share torch's generator. So the others begin when rank 0 has drawn its
    // seed, and draw other ones.
    std::promise<void> drawn;
    const std::shared_future<void> has_drawn = drawn.get_future().share();
    ranks(size, [&](const Group& group) {
      WatchedOperations operations;
      if (group.rank() == 0) {
        operations.before = [&] { drawn.set_value(); };
      } else {
        has_drawn.wait();
      }
      MoE layer(dropless(at::kFloat), watched(group, operations));
      const NamedTensors own = expert_parameters(*layer);
      EXPECT_EQ(own.size(), whole.size() / static_cast<size_t>(size));
      for (const NamedTensor& parameter : own) {
        EXPECT_TRUE(parameter.tensor.equal(whole.at(parameter.name))) << parameter.name;
      }
    });
  }
}

TEST(MoEParallel, RefusesRanksWithDifferentOptions) {
  ranks(2, [](Group group) {
    MoEOptions options = dropless(at::kFloat);
    options.intermediate_size = group.rank() == 0 ? 12 : 16;
    EXPECT_THAT(
        [&] { MoE layer(options, group); },
        ThrowsMessage<ConfigError>(
            HasSubstr("got intermediate_size 16 on rank 1 and 12 on rank 0")));
    MoEOptions three = dropless(at::kFloat);
    three.num_experts = 3;
    EXPECT_THAT(
        [&] { MoE layer(three, group); },
        ThrowsMessage<ConfigError>(HasSubstr("got num_experts 3 and 2 ranks")));
  });
}

}  // namespace
}  // namespace lockstep::expert_parallel
