// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.SGD's.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  ///< Needs a momentum, and no dampening.
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Stochastic gradient descent, one pass over memory by libtorch's fused kernel.
struct SGDRule {
  using Options = SGDOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const RuleCall& call);
};

using SGD = RuleOptimizer<SGDRule>;

}  // namespace lockstep::optim
