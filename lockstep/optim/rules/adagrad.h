// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.Adagrad's.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  bool capturable = false;  ///< See FlatOptimizer.
};

/// Adagrad, one pass over memory by libtorch's fused kernel. State exists from the beginning, as in
/// Python. Modelled on Duchi, Hazan & Singer, JMLR 2011.
struct AdagradRule {
  using Options = AdagradOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static double initial(const Options& options, size_t field);
  static void update(const Options& options, const RuleCall& call);
};

using Adagrad = RuleOptimizer<AdagradRule>;

}  // namespace lockstep::optim
