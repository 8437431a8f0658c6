// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// torch.optim.Adadelta's, by its names and defaults.
struct AdadeltaOptions {
  double lr = 1;
  double rho = 0.9;   ///< Of both averages; from 0 to 1.
  double eps = 1e-6;  ///< Added inside both square roots.
  double weight_decay = 0;
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// The gradient times the root mean square of past updates over that of past gradients, so that a
/// step has the parameter's unit. Libtorch has no fused kernel: the passes torch.optim makes, over
/// stretches that stay in the cache. After: Zeiler, arXiv:1212.5701.
struct AdadeltaRule {
  using Options = AdadeltaOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const Batch& batch);
};

using Adadelta = RuleOptimizer<AdadeltaRule>;

}  // namespace lockstep::optim
