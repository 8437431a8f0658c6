// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.RAdam's.
struct RAdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;              ///< Added to the gradient, or as the next says.
  bool decoupled_weight_decay = false;  ///< Taken from the parameter, times lr, as AdamW's.
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Adam with a built-in warm-up. It uses momentum alone while the variance of the second moment is
/// large, then a rate that grows as this variance falls. Without a fused kernel of libtorch:
/// torch.optim's passes, over chunks that stay in the cache. Modelled on Liu et al., "On the
/// Variance of the Adaptive Learning Rate and Beyond", ICLR 2020.
struct RAdamRule {
  using Options = RAdamOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static void update(const Options& options, const RuleCall& call);
};

using RAdam = RuleOptimizer<RAdamRule>;

}  // namespace lockstep::optim
