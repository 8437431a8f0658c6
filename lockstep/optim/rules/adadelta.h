// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.Adadelta's.
struct AdadeltaOptions {
  double lr = 1;
  double rho = 0.9;   ///< Decay of both averages; from 0 to 1.
  double eps = 1e-6;  ///< Added inside both square roots.
  double weight_decay = 0;
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Scales the gradient by the root mean square of past updates over that of past gradients. So a
/// step has the parameter's unit. Without a fused kernel of libtorch: torch.optim's passes, over
/// chunks that stay in the cache. Modelled on Zeiler, arXiv:1212.5701.
struct AdadeltaRule {
  using Options = AdadeltaOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static void update(const Options& options, const RuleCall& call);
};

using Adadelta = RuleOptimizer<AdadeltaRule>;

}  // namespace lockstep::optim
