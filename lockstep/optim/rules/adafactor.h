// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include "lockstep/optim/flat/sharded_batch.h"
#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// torch.optim.Adafactor's, by its names and defaults.
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

/// The second moment of a matrix as one row and one column: n + m numbers of state, not n * m.
///
/// Tensors of more dimensions are stacks of matrices, their last two. One parameter at a time,
/// since each has its own norms; two of them are read back to the host. Where ranks have slices, as
/// under ZeRO, the sums of squares of rows and columns and the norms are added up over ranks, in
/// two all-reduces of all parameters together, of n + m + 1 numbers and one: the numbers of one
/// process but for the order of those sums. Each rank with a slice has the row and the column
/// whole, and holds its slices' updates until the second. After: Shazeer & Stern, "Adafactor", ICML
/// 2018, in torch.optim's form, which keeps means where the paper keeps sums and applies eps[0]
/// where it divides.
struct AdafactorRule {
  using Options = AdafactorOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const Batch& batch);
  static void update_sharded(const Options& options, const ShardedBatch& batch);
};

using Adafactor = RuleOptimizer<AdafactorRule>;

}  // namespace lockstep::optim
