// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep::expert_parallel {

/// The order in which an expert accepts tokens until its capacity is full.
enum class DropPolicy {
  kProbs,     ///< By probability, largest first: DeepSpeed's topkgating with drop_policy "probs".
  kPosition,  ///< By position of the token: topkgating with drop_policy "position".
  kChoice,    ///< First choices of all tokens, then second ones, each by position: top2gating.
  kRandom     ///< In random order: top1gating with use_rts.
};

/// DeepSpeed's noise of the choice of experts, in training only.
enum class NoisyGatePolicy {
  kNone,
  kJitter,  ///< The router's input is multiplied by random numbers in [0.99, 1.01).
  kRSample  ///< Experts are chosen by logits plus Gumbel noise; weights have no noise.
};

struct RouterOptions {
  /// Number of experts for each token.
  int64_t k = 2;
  /// Divides the weights of a token's experts by their sum, after drops: softmax, then top-k, then
  /// division, as Mixtral and DeepSpeed do. It is equal to top-k, then softmax. Without it the
  /// weights are the probabilities, as in Switch and in DeepSpeed with k = 1. It needs k > 1.
  bool norm_topk_prob = true;
  /// An expert accepts at most ceil(tokens / experts * capacity_factor * k) tokens of a rank. None:
  /// dropless.
  std::optional<double> capacity_factor = std::nullopt;
  /// The smallest capacity.
  int64_t min_capacity = 4;
  DropPolicy drop_policy = DropPolicy::kProbs;
  NoisyGatePolicy noisy_gate_policy = NoisyGatePolicy::kNone;
  /// Chooses the second of two experts with Gumbel noise: DeepSpeed's option of the same name. It
  /// needs k = 2.
  bool top2_2nd_expert_sampling = false;
};

/// Throws ConfigError if `options` cannot route to `num_experts` experts.
void check_router_options(const RouterOptions& options, int64_t num_experts);

/// The experts of each token. T: tokens of this rank; E: all experts; k: choices of a token.
struct Routing {
  at::Tensor logits;      ///< float32 or float64 [T, E]; differentiable.
  at::Tensor probs;       ///< softmax(logits) [T, E]; differentiable.
  at::Tensor experts;     ///< int64 [T, k]: chosen experts, best first, dropped ones included.
  at::Tensor kept;        ///< bool [T, k]: false if the expert was full.
  at::Tensor weights;     ///< [T, k], dtype of probs, 0 if dropped; differentiable.
  at::Tensor exp_counts;  ///< int64 [E]: tokens that chose each expert, dropped ones included.
};

/// Chooses the experts of each token, and drops those above the capacity.
///
/// `logits`: [T, E], any floating-point dtype; 16-bit ones are computed in float32. T may be 0.
/// Throws ConfigError for options that check_router_options refuses. Local. Noise takes torch's
/// default random numbers. Cost: two sorts of T*k numbers if tokens may be dropped. Modelled on
/// DeepSpeed's `topkgating` and transformers' `MixtralTopKRouter`.
Routing route(const at::Tensor& logits, const RouterOptions& options);

/// Returns the number of tokens that an expert accepts from one rank: ceil(tokens / experts *
/// capacity_factor * k) in float32, as DeepSpeed computes it, but at least min_capacity. Needs a
/// capacity_factor.
int64_t capacity_of(const RouterOptions& options, int64_t tokens, int64_t num_experts);

/// Returns Mixtral's auxiliary loss of several layers, a scalar:
///
///     E * sum over e of f_e * P_e
///     f_e = choices of expert e by all tokens and layers / (T * layers); their sum is k
///     P_e = mean probability of expert e over all tokens and layers
///
/// Drops do not change it. Gradients flow through P only. With a `group`, f is the mean over all
/// its ranks' tokens, so that the mean of the ranks' losses is the loss of all tokens in one
/// process; collective: one all_reduce of E + 1 numbers. Without one, each rank balances its own
/// tokens. A rank without tokens has the loss 0. Throws ConfigError without layers.
at::Tensor load_balancing_loss(
    const std::vector<Routing>& layers, const std::optional<Group>& group = std::nullopt);

/// Returns DeepSpeed's l_aux of one layer, a scalar: E * sum over e of f_e * P_e, where f_e counts
/// first choices for k = 1 and 2, and all choices / k for larger k. `group`: see above.
at::Tensor l_aux(const Routing& routing, const std::optional<Group>& group = std::nullopt);

/// Returns the router's z-loss, a scalar: the mean over tokens of log(sum of exp(logits))^2. Keeps
/// logits small. Modelled on Zoph et al., "ST-MoE", 2022.
at::Tensor router_z_loss(const Routing& routing);

}  // namespace lockstep::expert_parallel
