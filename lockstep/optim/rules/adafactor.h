// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include "lockstep/optim/flat/sharded_rule_call.h"
#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.Adafactor's.
struct AdafactorOptions {
  double lr = 1e-2;  ///< Caps the relative step: min(lr, 1/sqrt(step)).
  double beta2_decay = -0.8;
  /// Least square root of a variance (the dtype's epsilon if absent); least root mean square of a
  /// parameter.
  std::pair<std::optional<double>, double> eps = {std::nullopt, 1e-3};
  double d = 1.0;  ///< Largest root mean square of an update.
  double weight_decay = 0;
  bool maximize = false;
};

/// Factors the second moment of a matrix into one row and one column. State: n + m numbers, not n *
/// m.
///
/// Tensors of more dimensions are stacks of matrices, their last two. It updates one parameter at a
/// time, since each has its own norms; two of them are read back to the host. If ranks own slices,
/// as under ZeRO, two all-reduces of all parameters together sum n + m + 1 numbers and one number
/// per parameter. These are squares of rows and columns, and norms. Results equal those of one
/// process but for the order of these sums. Each rank with a slice has the full row and column, and
/// holds its slices' updates until the second all-reduce. Modelled on Shazeer & Stern, "Adafactor",
/// ICML 2018, in torch.optim's form, which keeps means where the paper keeps sums and applies
/// eps[0] where it divides.
struct AdafactorRule {
  using Options = AdafactorOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const RuleCall& call);
  static void update_sharded(const Options& options, const ShardedRuleCall& call);
};

using Adafactor = RuleOptimizer<AdafactorRule>;

}  // namespace lockstep::optim
