// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.Adamax's.
struct AdamaxOptions {
  double lr = 2e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;  ///< Added to the gradient's absolute value.
  double weight_decay = 0;
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Adam with the largest recent gradient in place of the root mean square. Without a fused kernel
/// of libtorch: torch.optim's passes, over chunks that stay in the cache. Modelled on Kingma & Ba,
/// "Adam", ICLR 2015, section 7.1.
struct AdamaxRule {
  using Options = AdamaxOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static void update(const Options& options, const RuleCall& call);
};

using Adamax = RuleOptimizer<AdamaxRule>;

}  // namespace lockstep::optim
