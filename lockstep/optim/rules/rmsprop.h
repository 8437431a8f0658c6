// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.RMSprop's.
struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;  ///< Added outside the square root.
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// RMSprop, without a fused kernel of libtorch: torch.optim's passes, over chunks that stay in the
/// cache. Modelled on Tieleman & Hinton, lecture 6.5, 2012; centered: Graves, arXiv:1308.0850.
struct RMSpropRule {
  using Options = RMSpropOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const RuleCall& call);
};

using RMSprop = RuleOptimizer<RMSpropRule>;

}  // namespace lockstep::optim
