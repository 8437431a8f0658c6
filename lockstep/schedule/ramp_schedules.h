// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/schedule/schedule.h"

/// The schedules of torch.optim.lr_scheduler whose rates rise, after a start below the base rate or
/// periodically. They use closed forms, as those of decay_schedules.h. Every factory throws
/// ConfigError for invalid numbers.
namespace lockstep::schedule {

struct ConstantFactorOptions {
  double factor = 1.0 / 3;  ///< From 0 to 1.
  int64_t num_steps = 5;    ///< At least 1; torch's total_iters.
};
/// Stays at `factor` of the base rate before step `num_steps`, then at the base rate: ConstantLR.
/// Never ends.
Schedule constant_factor(ConstantFactorOptions options);

struct LinearFactorOptions {
  double start_factor = 1.0 / 3;  ///< Above 0, at most 1.
  double end_factor = 1;          ///< From 0 to 1.
  int64_t num_steps = 5;          ///< At least 1; torch's total_iters.
};
/// Goes from `start_factor` to `end_factor` of the base rate in `num_steps` steps, and stays there:
/// LinearLR. Never ends.
Schedule linear_factor(LinearFactorOptions options);

/// The change of a cycle's height.
enum class CyclicMode {
  kTriangular,   ///< Stays.
  kTriangular2,  ///< Halves each cycle.
  kExpRange      ///< Multiplied by gamma every step.
};

struct CyclicOptions {
  std::vector<double> base_lr = {};  ///< One for all parameter groups, or one for each. Required.
  std::vector<double> max_lr = {};   ///< Likewise.
  int64_t step_size_up = 2000;       ///< Steps that rise; at least 1.
  std::optional<int64_t> step_size_down =
      std::nullopt;  ///< Steps that fall; default: step_size_up.
  CyclicMode mode = CyclicMode::kTriangular;
  double gamma = 1;            ///< For kExpRange.
  bool cycle_momentum = true;  ///< Moves momentum (Adam: the first beta) against the rate.
  std::vector<double> base_momentum = {0.8};  ///< At the highest rate; as base_lr.
  std::vector<double> max_momentum = {0.9};
};
/// Rises from `base_lr` to `max_lr` and falls again linearly, periodically: CyclicLR. The
/// optimizer's own rate is ignored. Never ends. Modelled on Smith, "Cyclical Learning Rates for
/// Training Neural Networks", 2017.
Schedule cyclic(CyclicOptions options);

}  // namespace lockstep::schedule
