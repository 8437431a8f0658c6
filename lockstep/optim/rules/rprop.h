// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// torch.optim.Rprop's, by its names and defaults.
struct RpropOptions {
  double lr = 1e-2;  ///< Of the first step.
  std::pair<double, double> etas = {
      0.5, 1.2};  ///< Of a step's size, where signs differ, and agree.
  std::pair<double, double> step_sizes = {1e-6, 50};  ///< Smallest and largest.
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Each element moves against its gradient's sign by a step of its own, which grows while the sign
/// stays and shrinks when it changes. For gradients of the whole data set: those of small batches
/// change their signs too often. After the first update lr plays no part, so a schedule of it does
/// nothing. After: Riedmiller & Braun, "A direct adaptive method for faster backpropagation
/// learning: the RPROP algorithm", 1993, without going back, in torch.optim's form.
struct RpropRule {
  using Options = RpropOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static double initial(const Options& options, size_t field);
  static void update(const Options& options, const Batch& batch);
};

using Rprop = RuleOptimizer<RpropRule>;

}  // namespace lockstep::optim
