// SPDX-License-Identifier: Apache-2.0
// Against plain loops, and against tests/golden/experts.json of DeepSpeed and transformers.
#include "lockstep/expert_parallel/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/expert_parallel/test_golden.h"

namespace lockstep::expert_parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor gradient_of(const at::Tensor& scalar, const at::Tensor& input) {
  return torch::autograd::grad({scalar}, {input}, {}, /*retain_graph=*/true)[0];
}

/// Returns weights as [tokens, experts], 0 where a token did not choose an expert.
at::Tensor dense_weights(const Routing& routing) {
  return at::zeros_like(routing.probs).scatter_add(1, routing.experts, routing.weights);
}

RouterOptions golden_options(const nlohmann::json& it) {
  RouterOptions options{.k = it["k"], .min_capacity = it["min_capacity"]};
  options.norm_topk_prob = options.k > 1;
  if (!it["capacity_factor"].is_null()) {
    options.capacity_factor = it["capacity_factor"].get<double>();
  }
  const std::string function = it["function"];
  options.drop_policy = function == "position" ? DropPolicy::kPosition
                        : function == "probs"  ? DropPolicy::kProbs
                                               : DropPolicy::kChoice;
  return options;
}

TEST(Route, EqualsDeepSpeedsGatingFunctionsTokenByToken) {
  int dropping = 0;
  for (const auto& [name, it] : golden()["gating"].items()) {
    const int64_t tokens = it["tokens"];
    const int64_t experts = it["experts"];
    const at::Tensor logits = made({tokens, experts}, it["first"]).requires_grad_();
    const RouterOptions options = golden_options(it);
    const Routing routing = route(logits, options);
    const at::Tensor weights = dense_weights(routing);
    expect_golden(weights, it["weights"], name + ": weights");
    const at::Tensor expected_kept =
        at::tensor(it["weights"].get<std::vector<double>>()).view({tokens, experts}).gt(0);
    EXPECT_TRUE(weights.gt(0).equal(expected_kept)) << name << ": kept tokens";
    expect_golden(routing.exp_counts, it["exp_counts"], name + ": exp_counts");
    if (options.capacity_factor) {
      EXPECT_EQ(capacity_of(options, tokens, experts), it["buffer"]) << name;
      dropping += routing.kept.all().item<bool>() ? 0 : 1;
    }
    // topkgating divides all choices by k, also for k = 2.
    const bool is_topk2 = options.k == 2 && it["function"] != "top2";
    const at::Tensor aux = is_topk2 ? load_balancing_loss({routing}) / options.k : l_aux(routing);
    EXPECT_NEAR(aux.item<double>(), it["l_aux"].get<double>(), 1e-6) << name;
    expect_golden(gradient_of(aux, logits), it["l_aux_gradient"], name + ": gradient of l_aux");
    const at::Tensor factors = made({tokens, experts}, 5);
    expect_golden(
        gradient_of((weights * factors).sum(), logits), it["gradient"], name + ": gradient");
  }
  EXPECT_GE(dropping, 6);
}

TEST(LoadBalancingLoss, EqualsTransformersMixtralForOneLayerAndForSeveral) {
  for (const nlohmann::json& it : golden()["load_balancing"]) {
    const RouterOptions options{.k = it["k"]};
    std::vector<at::Tensor> logits;
    std::vector<Routing> layers;
    for (int64_t i = 0; i < it["layers"]; ++i) {
      logits.push_back(made({it["tokens"], it["experts"]}, 23 * i).requires_grad_());
      layers.push_back(route(logits.back(), options));
    }
    const at::Tensor loss = load_balancing_loss(layers);
    EXPECT_NEAR(loss.item<double>(), it["loss"].get<double>(), 1e-6);
    for (size_t i = 0; i < logits.size(); ++i) {
      expect_golden(gradient_of(loss, logits[i]), it["gradients"][i], "layer");
    }
  }
}

/// Computes one token's choices by loops.
struct PlainChoice {
  std::vector<int64_t> experts;
  std::vector<double> probs;
};

PlainChoice plain_choice(const at::Tensor& logits, int64_t k) {
  std::vector<double> probs;
  for (int64_t e = 0; e < logits.numel(); ++e) {
    probs.push_back(std::exp(logits[e].item<double>()));
  }
  const double sum = std::accumulate(probs.begin(), probs.end(), 0.0);
  std::vector<int64_t> order(probs.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int64_t a, int64_t b) {
    return probs[static_cast<size_t>(a)] > probs[static_cast<size_t>(b)];
  });
  PlainChoice choice;
  for (int64_t j = 0; j < k; ++j) {
    choice.experts.push_back(order[static_cast<size_t>(j)]);
    choice.probs.push_back(probs[static_cast<size_t>(choice.experts.back())] / sum);
  }
  return choice;
}

TEST(Route, EqualsALoopOverTokensWithoutDrops) {
  const at::Tensor logits = made({19, 7}, 4, 200, at::kDouble);
  for (const bool norm : {false, true}) {
    const Routing routing = route(logits, {.k = 3, .norm_topk_prob = norm});
    for (int64_t t = 0; t < 19; ++t) {
      const PlainChoice plain = plain_choice(logits[t], 3);
      const double sum = norm ? std::accumulate(plain.probs.begin(), plain.probs.end(), 0.0) : 1.0;
      for (int64_t j = 0; j < 3; ++j) {
        const auto at = static_cast<size_t>(j);
        EXPECT_EQ(routing.experts[t][j].item<int64_t>(), plain.experts[at]);
        EXPECT_NEAR(routing.weights[t][j].item<double>(), plain.probs[at] / sum, 1e-15);
      }
    }
    EXPECT_TRUE(routing.kept.all().item<bool>());
  }
}

TEST(Route, DividesByTheSumAsSoftmaxOverTheChosenLogitsDoes) {
  const at::Tensor logits = made({11, 6}, 9, 200, at::kDouble);
  const Routing routing = route(logits, {.k = 2});
  const at::Tensor after = at::softmax(logits.gather(1, routing.experts), 1);
  EXPECT_LT(difference(routing.weights, after), 1e-15);
}

TEST(Route, AcceptsTokensInTheOrderOfTheDropPolicy) {
  // Four tokens, two experts, both chosen by all; each expert accepts 2 of the 4.
  const at::Tensor first = at::tensor({0.6, 0.9, 0.3, 0.2}, at::kDouble);
  const at::Tensor logits = at::stack({first, 1 - first}, 1).log();
  RouterOptions options{.k = 2, .norm_topk_prob = false, .capacity_factor = 0.5, .min_capacity = 0};
  const auto kept_of = [&](DropPolicy policy) {
    options.drop_policy = policy;
    const Routing routing = route(logits, options);
    const at::Tensor by_expert =
        at::zeros({4, 2}, at::kLong).scatter(1, routing.experts, routing.kept.to(at::kLong));
    return by_expert;
  };
  const auto rows = [](const std::vector<int64_t>& values) {
    return at::tensor(values).view({4, 2});
  };
  // Expert 0 prefers tokens 1 and 0, expert 1 prefers tokens 3 and 2.
  EXPECT_TRUE(kept_of(DropPolicy::kProbs).equal(rows({1, 0, 1, 0, 0, 1, 0, 1})));
  EXPECT_TRUE(kept_of(DropPolicy::kPosition).equal(rows({1, 1, 1, 1, 0, 0, 0, 0})));
  // First choices: tokens 0 and 1 choose expert 0; tokens 2 and 3 expert 1. So no place is left.
  EXPECT_TRUE(kept_of(DropPolicy::kChoice).equal(rows({1, 0, 1, 0, 0, 1, 0, 1})));
  const at::Tensor random = kept_of(DropPolicy::kRandom);
  EXPECT_TRUE(random.sum(0).equal(at::tensor({2, 2}, at::kLong)));
}

TEST(Route, AcceptsRandomTokensThatFollowTheSeed) {
  const at::Tensor logits = made({64, 4}, 1);
  const RouterOptions options{
      .k = 1, .norm_topk_prob = false, .capacity_factor = 0.5, .drop_policy = DropPolicy::kRandom};
  const auto kept_with = [&](uint64_t seed) {
    at::manual_seed(seed);
    return route(logits, options).kept;
  };
  EXPECT_TRUE(kept_with(3).equal(kept_with(3)));
  EXPECT_FALSE(kept_with(3).equal(kept_with(4)));
}

TEST(Route, AddsNoiseToTheChoiceOnly) {
  const at::Tensor logits = made({200, 4}, 1, 400);
  const RouterOptions plain{.k = 1, .norm_topk_prob = false};
  RouterOptions noisy = plain;
  noisy.noisy_gate_policy = NoisyGatePolicy::kRSample;
  const Routing clean = route(logits, plain);
  const Routing sampled = route(logits, noisy);
  EXPECT_FALSE(sampled.experts.equal(clean.experts));
  EXPECT_TRUE(sampled.weights.equal(clean.probs.gather(1, sampled.experts)));
  // Gumbel noise samples from the softmax: shares are near the mean probabilities.
  const at::Tensor shares = sampled.exp_counts.to(at::kFloat) / 200;
  EXPECT_LT(difference(shares, clean.probs.mean(0)), 0.15);

  RouterOptions second{.k = 2, .top2_2nd_expert_sampling = true};
  const Routing two = route(logits, second);
  EXPECT_TRUE(two.experts.select(1, 0).equal(clean.experts.select(1, 0)));
  EXPECT_FALSE(two.experts.select(1, 0).eq(two.experts.select(1, 1)).any().item<bool>());
  second.top2_2nd_expert_sampling = false;
  EXPECT_FALSE(two.experts.equal(route(logits, second).experts));
}

TEST(Route, ComputesSixteenBitLogitsInFloat32) {
  const at::Tensor logits = made({9, 4}, 1).to(at::kBFloat16);
  const Routing routing = route(logits, {});
  EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
  EXPECT_TRUE(routing.weights.equal(route(logits.to(at::kFloat), {}).weights));
}

TEST(Route, GivesARankWithoutTokensEmptyResultsAndNoLoss) {
  const at::Tensor logits = at::zeros({0, 4}).requires_grad_();
  const Routing routing = route(logits, {.capacity_factor = 1.0});
  EXPECT_THAT(routing.experts.sizes(), ElementsAre(0, 2));
  EXPECT_EQ(routing.exp_counts.sum().item<int64_t>(), 0);
  EXPECT_EQ(l_aux(routing).item<float>(), 0);
  EXPECT_EQ(load_balancing_loss({routing}).item<float>(), 0);
  EXPECT_EQ(router_z_loss(routing).item<float>(), 0);
}

TEST(Route, RefusesOptionsThatFitNoRouter) {
  const at::Tensor logits = made({4, 3}, 0);
  const auto expect_refused = [&](const RouterOptions& options, const char* why) {
    EXPECT_THAT([&] { route(logits, options); }, ThrowsMessage<ConfigError>(HasSubstr(why)));
  };
  expect_refused({.k = 4}, "got 4, expected 1 to 3");
  expect_refused({.k = 1}, "set norm_topk_prob to false");
  expect_refused({.capacity_factor = 0.0}, "capacity_factor is out of range");
  expect_refused({.min_capacity = -1}, "min_capacity is out of range");
  expect_refused({.k = 3, .top2_2nd_expert_sampling = true}, "got k = 3, expected 2");
  expect_refused(
      {.noisy_gate_policy = NoisyGatePolicy::kRSample, .top2_2nd_expert_sampling = true},
      "exclude each other");
  EXPECT_THAT(
      [&] { route(logits.to(at::kLong), {}); },
      ThrowsMessage<ConfigError>(HasSubstr("wrong shape or dtype")));
}

TEST(AuxiliaryLosses, HaveTheGradientsOfTheirFormulas) {
  const at::Tensor logits = made({10, 5}, 2, 200, at::kDouble).requires_grad_();
  const Routing routing = route(logits, {.k = 3});
  // d/dlogits of E * sum f * mean(p): p * (f - sum f p) * E / T.
  const at::Tensor f = routing.exp_counts.to(at::kDouble) / 10;
  const at::Tensor p = routing.probs.detach();
  const at::Tensor expected = p * (f - (p * f).sum(1, true)) * 5 / 10;
  EXPECT_LT(difference(gradient_of(load_balancing_loss({routing}), logits), expected), 1e-15);
  EXPECT_LT(difference(gradient_of(l_aux(routing), logits), expected / 3), 1e-15);
  // d/dlogits of mean(lse^2): 2 lse p / T.
  const at::Tensor lse = at::logsumexp(logits.detach(), {1}, /*keepdim=*/true);
  EXPECT_LT(difference(router_z_loss(routing), lse.square().mean()), 1e-14);
  EXPECT_LT(difference(gradient_of(router_z_loss(routing), logits), 2 * lse * p / 10), 1e-15);
}

TEST(LoadBalancingLoss, OfAGroupIsThatOfOneProcessOnAverage) {
  const at::Tensor all = made({12, 4}, 6, 200, at::kDouble);
  const at::Tensor whole = all.clone().requires_grad_();
  const Routing together = route(whole, {});
  const at::Tensor expected = load_balancing_loss({together});
  const at::Tensor expected_gradient = gradient_of(expected, whole);
  const at::Tensor expected_aux = l_aux(together);
  // The ranks have 3, 4 and 5 tokens.
  ranks(3, [&](Group group) {
    const std::vector<int64_t> starts{0, 3, 7, 12};
    const auto rank = static_cast<size_t>(group.rank());
    const at::Tensor own = all.slice(0, starts[rank], starts[rank + 1]).clone().requires_grad_();
    const Routing routing = route(own, {});
    const at::Tensor loss = load_balancing_loss({routing}, group);
    const at::Tensor mean = group.all_reduce(loss.detach().clone(), ReduceOp::kAvg).wait();
    EXPECT_LT(difference(mean, expected), 1e-14);
    const at::Tensor part = expected_gradient.slice(0, starts[rank], starts[rank + 1]);
    EXPECT_LT(difference(gradient_of(loss, own) / 3, part), 1e-15);
    const at::Tensor aux = l_aux(routing, group).detach().clone();
    EXPECT_LT(difference(group.all_reduce(aux, ReduceOp::kAvg).wait(), expected_aux), 1e-14);
    // Negative control: without the group the mean of the losses is another number.
    const at::Tensor local = load_balancing_loss({routing}).detach().clone();
    EXPECT_GT(difference(group.all_reduce(local, ReduceOp::kAvg).wait(), expected), 1e-3);
  });
}

}  // namespace
}  // namespace lockstep::expert_parallel
