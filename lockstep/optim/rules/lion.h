// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are those of the authors' code.
struct LionOptions {
  double lr = 1e-4;  ///< A third to a tenth of AdamW's.
  std::pair<double, double> betas = {0.9, 0.99};
  double weight_decay = 0;  ///< Decoupled, times lr: three to ten times AdamW's.
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Moves every element by lr, in the direction of the sign of a momentum. State: one tensor a
/// parameter, half of Adam's. Modelled on Chen et al., "Symbolic Discovery of Optimization
/// Algorithms", NeurIPS 2023, algorithm 2.
struct LionRule {
  using Options = LionOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static void update(const Options& options, const RuleCall& call);
};

using Lion = RuleOptimizer<LionRule>;

}  // namespace lockstep::optim
