// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// torch.optim.RAdam's, by its names and defaults.
struct RAdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;              ///< Added to the gradient, or as the next says.
  bool decoupled_weight_decay = false;  ///< Taken from the parameter, times lr, as AdamW's.
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Adam that warms up by itself: momentum alone until the second moment has seen enough to be
/// trusted, then a rate that grows with that trust. Libtorch has no fused kernel: the passes
/// torch.optim makes, over stretches that stay in the cache. After: Liu et al., "On the Variance of
/// the Adaptive Learning Rate and Beyond", ICLR 2020.
struct RAdamRule {
  using Options = RAdamOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const Batch& batch);
};

using RAdam = RuleOptimizer<RAdamRule>;

}  // namespace lockstep::optim
