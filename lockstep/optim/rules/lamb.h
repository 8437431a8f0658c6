// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/flat/sharded_batch.h"
#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// By the names and defaults of DeepSpeed's FusedLamb. `max_coeff` infinite and `min_coeff` 0 are
/// the paper's algorithm.
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
/// One parameter at a time, since each has its own norms, which stay on the device. Where DeepSpeed
/// folds the bias correction into the learning rate, so that eps and weight decay are scaled with
/// it, this corrects the moments, as the paper does. Where ranks have slices, as under ZeRO, the
/// squares of both norms are added up over ranks in one all-reduce, of two numbers a parameter: the
/// numbers of one process but for the order of those sums. Until then each rank holds its slices'
/// updates. After: You et al., "Large Batch Optimization for Deep Learning", ICLR 2020,
/// algorithm 2.
struct LAMBRule {
  using Options = LAMBOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const Batch& batch);
  static void update_sharded(const Options& options, const ShardedBatch& batch);
};

using LAMB = RuleOptimizer<LAMBRule>;

}  // namespace lockstep::optim
