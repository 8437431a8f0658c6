// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/flat/sharded_rule_call.h"
#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are DeepSpeed's FusedLamb's. The paper's algorithm has an infinite
/// `max_coeff` and a `min_coeff` of 0.
struct LAMBOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool eps_inside_sqrt = false;  ///< Adds eps to the second moment, not to its root.
  double max_coeff = 10;         ///< Largest trust ratio.
  double min_coeff = 0.01;       ///< Smallest.
  bool capturable = false;       ///< See FlatOptimizer.
};

/// Adam's update, scaled for each parameter by |parameter| / |update|, the trust ratio (1 if either
/// is 0).
///
/// It updates one parameter at a time, since each has its own norms, which stay on the device. It
/// corrects the bias of the moments, as the paper does; DeepSpeed folds the correction into the
/// learning rate, which scales eps and weight decay, too. If ranks own slices, as under ZeRO, one
/// all-reduce of two numbers per parameter sums the squares of both norms. Results equal those of
/// one process but for the order of these sums. Until then each rank holds its slices' updates.
/// Modelled on You et al., "Large Batch Optimization for Deep Learning", ICLR 2020, algorithm 2.
struct LAMBRule {
  using Options = LAMBOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static void update(const Options& options, const RuleCall& call);
  static void update_sharded(const Options& options, const ShardedRuleCall& call);
};

using LAMB = RuleOptimizer<LAMBRule>;

}  // namespace lockstep::optim
