// SPDX-License-Identifier: Apache-2.0
#include "lockstep/expert_parallel/dispatch.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/expert_parallel/test_golden.h"
#include "lockstep/expert_parallel/test_transport.h"

namespace lockstep::expert_parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Returns a routing of the given experts [tokens][k], with the weights 1, 1/2, 1/4 ...
Routing routing_of(const at::Tensor& experts, int64_t num_experts) {
  Routing routing;
  routing.experts = experts;
  routing.kept = at::ones_like(experts, at::kBool);
  routing.probs = at::zeros({experts.size(0), num_experts}, at::kDouble);
  routing.weights =
      at::pow(0.5, at::arange(experts.size(1), at::kDouble)).expand(experts.sizes()).clone();
  return routing;
}

/// Each rank has another number of tokens, rank 0 none; most choose expert 1.
at::Tensor experts_of(int rank, int64_t num_experts) {
  const at::Tensor first = at::arange(3 * rank, at::kLong).remainder(3).clamp_max(1);
  return at::stack({first, (first + 1 + rank).remainder(num_experts)}, 1);
}

at::Tensor tokens_of(int rank) {
  return made({int64_t{3} * rank, 4}, int64_t{100} * rank, 200, at::kDouble);
}

TEST(ExpertDispatch, GivesEachExpertItsRowsInTheOrderOfRanksAndTokens) {
  constexpr int64_t kExperts = 8;
  for (const int size : {1, 2, 4}) {
    ranks(size, [&](const Group& group) {
      const ExpertDispatch exchange(
          group, routing_of(experts_of(group.rank(), kExperts), kExperts));
      const at::Tensor rows = exchange.dispatch(tokens_of(group.rank()));
      std::vector<at::Tensor> expected{at::zeros({0, 4}, at::kDouble)};
      std::vector<int64_t> counts;
      const int64_t local = kExperts / size;
      for (int64_t e = group.rank() * local; e < (group.rank() + 1) * local; ++e) {
        int64_t count = 0;
        for (int from = 0; from < size; ++from) {
          const at::Tensor experts = experts_of(from, kExperts);
          for (int64_t t = 0; t < experts.size(0); ++t) {
            if (experts[t].eq(e).any().item<bool>()) {
              expected.push_back(tokens_of(from).narrow(0, t, 1));
              ++count;
            }
          }
        }
        counts.push_back(count);
      }
      EXPECT_TRUE(rows.equal(at::cat(expected))) << "rank " << group.rank();
      EXPECT_EQ(exchange.rows_of_experts(), counts);
    });
  }
}

TEST(ExpertDispatch, ReturnsTheWeightedSumOfTheExpertsToEachToken) {
  ranks(4, [](const Group& group) {
    const at::Tensor experts = experts_of(group.rank(), 8);
    const ExpertDispatch exchange(group, routing_of(experts, 8));
    at::Tensor rows = exchange.dispatch(tokens_of(group.rank())).clone();
    // Expert e multiplies by e + 1.
    int64_t start = 0;
    for (int64_t e = 0; e < 2; ++e) {
      const int64_t count = exchange.rows_of_experts()[static_cast<size_t>(e)];
      rows.narrow(0, start, count).mul_(int64_t{2} * group.rank() + e + 1);
      start += count;
    }
    const at::Tensor factors = (experts + 1).to(at::kDouble);
    const at::Tensor expected =
        tokens_of(group.rank()) * (factors.select(1, 0) + factors.select(1, 1) / 2).unsqueeze(1);
    EXPECT_LT(difference(exchange.combine(rows), expected), 1e-14);
  });
}

TEST(ExpertDispatch, SendsNoDroppedChoiceAndGivesZerosToATokenWithoutExperts) {
  ranks(2, [](const Group& group) {
    Routing routing = routing_of(at::tensor({0, 1, 1, 0, 1, 0}, at::kLong).view({3, 2}), 2);
    routing.kept = at::tensor({1, 0, 0, 0, 1, 1}, at::kLong).view({3, 2}).to(at::kBool);
    const ExpertDispatch exchange(group, routing);
    const at::Tensor tokens = made({3, 4}, group.rank(), 200, at::kDouble);
    const at::Tensor rows = exchange.dispatch(tokens);
    // Rank 0 has expert 0, which keeps tokens 0 and 2 of each rank; expert 1 keeps token 2.
    EXPECT_EQ(rows.size(0), group.rank() == 0 ? 4 : 2);
    const at::Tensor expected = tokens * at::tensor({1.0, 0.0, 1.5}, at::kDouble).unsqueeze(1);
    EXPECT_LT(difference(exchange.combine(rows), expected), 1e-15);
  });
}

TEST(ExpertDispatch, SendsGradientsBackAndGradientsOfGradients) {
  ranks(2, [](const Group& group) {
    const int64_t count = group.rank() == 0 ? 0 : 5;
    const at::Tensor tokens = made({count, 3}, 7, 200, at::kDouble).requires_grad_();
    const at::Tensor experts = at::tensor({0, 3, 2, 1, 1, 3, 0, 2, 3, 2}, at::kLong).view({5, 2});
    const ExpertDispatch exchange(group, routing_of(experts.narrow(0, 0, count), 4));
    const at::Tensor rows = exchange.dispatch(tokens);
    const at::Tensor out = exchange.combine(rows.square() * (group.rank() + 1));
    // Token: (r0 + 1) + (r1 + 1) / 2 times its square, where r0 and r1 are its experts' ranks.
    const at::Tensor rank_of = experts.narrow(0, 0, count).ge(2).to(at::kDouble) + 1;
    const at::Tensor factor = (rank_of.select(1, 0) + rank_of.select(1, 1) / 2).unsqueeze(1);
    const at::Tensor first =
        torch::autograd::grad({out.pow(2).sum()}, {tokens}, {}, std::nullopt, true)[0];
    EXPECT_LT(difference(first, 4 * factor.square() * tokens.pow(3)), 1e-12);
    const at::Tensor second = torch::autograd::grad({first.sum()}, {tokens})[0];
    EXPECT_LT(difference(second, 12 * factor.square() * tokens.square()), 1e-11);
  });
}

TEST(ExpertDispatch, SendsOnlyCountsIfNoRankHasTokens) {
  ranks(2, [](const Group& plain) {
    WatchedOperations operations;
    const Group group = watched(plain, operations);
    const ExpertDispatch exchange(group, routing_of(at::zeros({0, 2}, at::kLong), 4));
    const at::Tensor tokens = at::zeros({0, 3}, at::kDouble).requires_grad_();
    const at::Tensor out = exchange.combine(exchange.dispatch(tokens));
    out.sum().backward();
    EXPECT_THAT(out.sizes(), ElementsAre(0, 3));
    EXPECT_TRUE(tokens.grad().defined());
    EXPECT_EQ(operations.sums[comm::Op::kAllToAll].operations, 0);
    EXPECT_EQ(operations.sums[comm::Op::kAllGather].operations, 1);
  });
}

TEST(ExpertDispatch, RefusesWhatDoesNotMatch) {
  ranks(2, [](const Group& group) {
    EXPECT_THAT(
        [&] {
          ExpertDispatch(group, routing_of(at::zeros({2, 2}, at::kLong), 3));
        },
        ThrowsMessage<ConfigError>(HasSubstr("got 3 experts and 2 ranks")));
  });
  const ExpertDispatch exchange(Group(), routing_of(at::zeros({2, 2}, at::kLong), 3));
  EXPECT_THAT(
      [&] {
        exchange.dispatch(at::zeros({3, 4}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("got 2 dimensions and 3 tokens, expected [2, hidden]")));
  EXPECT_THAT(
      [&] {
        exchange.combine(at::zeros({3, 4}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("got 2 dimensions and 3 rows, expected [4, hidden]")));
}

TEST(ScaleGradient, ChangesTheGradientOnly) {
  const at::Tensor input = at::ones({2}, at::kDouble).requires_grad_();
  const at::Tensor output = scale_gradient(input, 0.25);
  EXPECT_TRUE(output.equal(input));
  output.sum().backward();
  EXPECT_TRUE(input.grad().equal(at::full({2}, 0.25, at::kDouble)));
}

}  // namespace
}  // namespace lockstep::expert_parallel
