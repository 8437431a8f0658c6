// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.Rprop's.
struct RpropOptions {
  double lr = 1e-2;  ///< The size of the first step.
  /// Factors of a step's size if signs differ, and if they agree.
  std::pair<double, double> etas = {0.5, 1.2};
  std::pair<double, double> step_sizes = {1e-6, 50};  ///< Smallest and largest.
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Moves each element against its gradient's sign by its own step. The step grows while the sign
/// stays and shrinks when it changes. For gradients of the full data set: those of small batches
/// change their signs too often. Only the first update reads lr, so a schedule of it has no effect.
/// Modelled on Riedmiller & Braun, "A direct adaptive method for faster backpropagation learning:
/// the RPROP algorithm", 1993, without backtracking, in torch.optim's form.
struct RpropRule {
  using Options = RpropOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static double initial(const Options& options, size_t field);
  static void update(const Options& options, const RuleCall& call);
};

using Rprop = RuleOptimizer<RpropRule>;

}  // namespace lockstep::optim
