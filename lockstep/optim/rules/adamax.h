// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// torch.optim.Adamax's, by its names and defaults.
struct AdamaxOptions {
  double lr = 2e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;  ///< Added to the gradient's size.
  double weight_decay = 0;
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Adam with the largest recent gradient in place of the root mean square. Libtorch has no fused
/// kernel: the passes torch.optim makes, over stretches that stay in the cache. After: Kingma & Ba,
/// "Adam", ICLR 2015, section 7.1.
struct AdamaxRule {
  using Options = AdamaxOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const Batch& batch);
};

using Adamax = RuleOptimizer<AdamaxRule>;

}  // namespace lockstep::optim
