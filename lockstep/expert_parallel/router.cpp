// SPDX-License-Identifier: Apache-2.0
#include "lockstep/expert_parallel/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/expert_parallel/indices.h"

namespace lockstep::expert_parallel {
namespace {

double epsilon_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::epsilon()
                              : std::numeric_limits<float>::epsilon();
}

/// Returns random numbers of the Gumbel distribution, with the shape of `like`.
at::Tensor gumbel_like(const at::Tensor& like) {
  const at::Tensor uniform = at::rand_like(like).clamp_min_(1e-20);
  return uniform.log_().neg_().clamp_min_(1e-20).log_().neg_();
}

/// Returns how often each expert occurs in `experts` (int64, any shape): int64 [num_experts].
at::Tensor counts_of(const at::Tensor& experts, int64_t num_experts) {
  const at::Tensor flat = experts.flatten();
  return at::zeros({num_experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
}

/// Returns the chosen experts, int64 [T, k].
at::Tensor choose(const at::Tensor& logits, const at::Tensor& probs, const RouterOptions& options) {
  if (options.top2_2nd_expert_sampling) {
    const at::Tensor first = logits.argmax(1, /*keepdim=*/true);
    const at::Tensor others =
        (logits + gumbel_like(logits)).scatter_(1, first, -std::numeric_limits<double>::infinity());
    return at::cat({first, others.argmax(1, /*keepdim=*/true)}, 1);
  }
  const bool samples = options.noisy_gate_policy == NoisyGatePolicy::kRSample;
  return std::get<1>(at::topk(samples ? logits + gumbel_like(logits) : probs, options.k, 1));
}

/// Returns the choices (index t * k + j) in the order in which experts accept them.
at::Tensor order_of_choices(const at::Tensor& chosen_probs, DropPolicy policy) {
  const auto options = chosen_probs.options().dtype(at::kLong);
  const int64_t tokens = chosen_probs.size(0);
  const int64_t k = chosen_probs.size(1);
  switch (policy) {
    case DropPolicy::kProbs:
      return at::argsort(chosen_probs.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/true);
    case DropPolicy::kPosition:
      return indices(tokens * k, options);
    case DropPolicy::kChoice:
      return indices(tokens * k, options).view({tokens, k}).t().flatten();
    case DropPolicy::kRandom:
      return at::randperm(tokens * k, options);
  }
  LOCKSTEP_ASSERT(false, "the drop policy is none of DropPolicy's");
}

/// Returns which choices the experts accept, bool [T, k]. Needs no value on the host, so a GPU does
/// not wait.
at::Tensor accepted(
    const at::Tensor& experts,
    const at::Tensor& chosen_probs,
    const at::Tensor& exp_counts,
    int64_t capacity,
    DropPolicy policy) {
  const at::Tensor order = order_of_choices(chosen_probs, policy);
  const at::Tensor in_order = experts.flatten().index_select(0, order);
  const at::Tensor by_expert = at::argsort(in_order, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor expert = in_order.index_select(0, by_expert);
  const at::Tensor first = exp_counts.cumsum(0) - exp_counts;
  const at::Tensor place =
      indices(expert.size(0), expert.options()) - first.index_select(0, expert);
  at::Tensor kept = at::zeros({expert.size(0)}, expert.options().dtype(at::kBool));
  kept.scatter_(0, order.index_select(0, by_expert), place.lt(capacity));
  return kept.view(experts.sizes());
}

/// Returns E * sum of f * P, where f counts `choices` [T, any] and is divided by `divisor`.
at::Tensor balance(
    const at::Tensor& probs,
    const at::Tensor& choices,
    int64_t divisor,
    const std::optional<Group>& group) {
  const int64_t experts = probs.size(1);
  const auto own_tokens = static_cast<double>(probs.size(0));
  // Counts of choices, and the number of tokens last. In float64 they are exact.
  at::Tensor counts = at::cat(
      {counts_of(choices, experts).to(at::kDouble),
       at::full({1}, own_tokens, probs.options().dtype(at::kDouble))});
  double ranks = 1;
  if (group && group->size() > 1) {
    counts = Group(*group).all_reduce(counts).wait();
    ranks = group->size();
  }
  const at::Tensor tokens = counts[experts].clamp_min(1);
  const at::Tensor f = counts.narrow(0, 0, experts) / (tokens * divisor);
  const at::Tensor p = probs.sum(0) * (ranks / tokens).to(probs.scalar_type());
  return (p * f.to(probs.scalar_type())).sum() * experts;
}

}  // namespace

void check_router_options(const RouterOptions& options, int64_t num_experts) {
  const auto refuse = [](const std::string& why) { throw ConfigError("route", why); };
  if (options.k < 1 || options.k > num_experts) {
    refuse(fmt::format(
        "k is the number of experts for each token; got {}, expected 1 to {} (num_experts)",
        options.k,
        num_experts));
  }
  if (options.norm_topk_prob && options.k == 1) {
    refuse(
        "norm_topk_prob divides the weight of a token's only expert by itself, so that the router "
        "gets no gradient; got k = 1, expected k > 1; set norm_topk_prob to false");
  }
  if (options.capacity_factor && !(*options.capacity_factor > 0)) {
    refuse(fmt::format(
        "capacity_factor is out of range; got {}, expected more than 0, or none for a dropless "
        "router",
        *options.capacity_factor));
  }
  if (options.min_capacity < 0) {
    refuse(fmt::format(
        "min_capacity is out of range; got {}, expected 0 or more", options.min_capacity));
  }
  if (options.top2_2nd_expert_sampling && options.k != 2) {
    refuse(fmt::format(
        "top2_2nd_expert_sampling chooses the second of two experts; got k = {}, expected 2",
        options.k));
  }
  if (options.top2_2nd_expert_sampling && options.noisy_gate_policy == NoisyGatePolicy::kRSample) {
    refuse(
        "top2_2nd_expert_sampling and the noisy gate policy RSample exclude each other; unset one");
  }
}

int64_t capacity_of(const RouterOptions& options, int64_t tokens, int64_t num_experts) {
  LOCKSTEP_ASSERT(options.capacity_factor.has_value(), "a dropless router has no capacity");
  // float32, because DeepSpeed's factor is a float32 tensor: 10 tokens * 1.1 are 11, not 12.
  const float mean =
      static_cast<float>(static_cast<double>(tokens) / static_cast<double>(num_experts));
  const auto factor = static_cast<float>(*options.capacity_factor * static_cast<double>(options.k));
  return std::max(static_cast<int64_t>(std::ceil(mean * factor)), options.min_capacity);
}

Routing route(const at::Tensor& logits, const RouterOptions& options) {
  if (logits.dim() != 2 || !logits.is_floating_point()) {
    throw ConfigError(
        "route",
        fmt::format(
            "the logits have the wrong shape or dtype; got {} with {} dimensions, expected "
            "floating-point [tokens, experts]",
            c10::toString(logits.scalar_type()),
            logits.dim()));
  }
  check_router_options(options, logits.size(1));
  Routing routing;
  routing.logits = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  routing.probs = at::softmax(routing.logits, 1);
  {
    const at::NoGradGuard no_grad;
    routing.experts = choose(routing.logits, routing.probs, options);
    routing.exp_counts = counts_of(routing.experts, logits.size(1));
  }
  const at::Tensor chosen = routing.probs.gather(1, routing.experts);
  routing.weights = chosen;
  if (options.capacity_factor) {
    const at::NoGradGuard no_grad;
    routing.kept = accepted(
        routing.experts,
        chosen,
        routing.exp_counts,
        capacity_of(options, logits.size(0), logits.size(1)),
        options.drop_policy);
  } else {
    routing.kept = at::ones_like(routing.experts, at::kBool);
  }
  if (options.capacity_factor) {
    routing.weights = chosen * routing.kept;
  }
  if (options.norm_topk_prob) {
    const double epsilon = epsilon_of(routing.weights.scalar_type());
    routing.weights = routing.weights / routing.weights.sum(1, /*keepdim=*/true).clamp_min(epsilon);
  }
  return routing;
}

at::Tensor load_balancing_loss(
    const std::vector<Routing>& layers, const std::optional<Group>& group) {
  if (layers.empty()) {
    throw ConfigError("load_balancing_loss", "got no layers, expected the routing of at least one");
  }
  if (layers.size() == 1) {
    return balance(layers[0].probs, layers[0].experts, 1, group);
  }
  std::vector<at::Tensor> probs;
  std::vector<at::Tensor> experts;
  for (const Routing& layer : layers) {
    probs.push_back(layer.probs);
    experts.push_back(layer.experts);
  }
  return balance(at::cat(probs), at::cat(experts), 1, group);
}

at::Tensor l_aux(const Routing& routing, const std::optional<Group>& group) {
  const int64_t k = routing.experts.size(1);
  return k <= 2 ? balance(routing.probs, routing.experts.narrow(1, 0, 1), 1, group)
                : balance(routing.probs, routing.experts, k, group);
}

at::Tensor router_z_loss(const Routing& routing) {
  const at::Tensor squares = at::logsumexp(routing.logits, {1}).square();
  return squares.sum() / std::max<int64_t>(squares.numel(), 1);
}

}  // namespace lockstep::expert_parallel
