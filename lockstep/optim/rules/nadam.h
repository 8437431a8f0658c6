// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.NAdam's.
struct NAdamOptions {
  double lr = 2e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;              ///< Added to the gradient, or as the next says.
  double momentum_decay = 4e-3;         ///< The speed at which momentum rises to the first beta.
  bool decoupled_weight_decay = false;  ///< Taken from the parameter, times lr, as AdamW's.
  bool maximize = false;
};

/// Adam with Nesterov's momentum. Without a fused kernel of libtorch: torch.optim's passes, over
/// chunks that stay in the cache. Not capturable: the product of all momenta so far is the host's.
/// Modelled on Dozat, "Incorporating Nesterov Momentum into Adam", 2016.
struct NAdamRule {
  using Options = NAdamOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  /// Scalars: the product of all momenta so far.
  static std::vector<double> advance(
      const Options& options, int64_t step, std::vector<float>& scalars);
  static void update(const Options& options, const RuleCall& call);
};

using NAdam = RuleOptimizer<NAdamRule>;

}  // namespace lockstep::optim
