// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/schedule/schedule.h"

/// The schedules of torch.optim.lr_scheduler, by their closed forms: equal to Python's up to the
/// rounding of its step-by-step products. (libtorch's own StepLR drops one step late; these do
/// not.) Every factory throws ConfigError for invalid numbers.
namespace lockstep::schedule {

struct StepDecayOptions {
  int64_t step_size = 0;  ///< Required.
  double gamma = 0.1;
};
/// Multiplies by `gamma` every `step_size` steps: StepLR. Never ends.
Schedule step_decay(StepDecayOptions options);

struct MultiStepDecayOptions {
  std::vector<int64_t> milestones = {};  ///< In any order; one given twice counts twice.
  double gamma = 0.1;
};
/// Multiplies by `gamma` at each milestone: MultiStepLR. Never ends.
Schedule multi_step_decay(MultiStepDecayOptions options);

struct ExponentialDecayOptions {
  double gamma = 0;  ///< Required.
};
/// Multiplies by `gamma` every step: ExponentialLR. Never ends.
Schedule exponential_decay(ExponentialDecayOptions options);

struct PolynomialDecayOptions {
  int64_t total_steps = 0;  ///< Required; torch's total_iters.
  double power = 1;
};
/// Falls to 0 as (1 - progress)^power: PolynomialLR.
Schedule polynomial_decay(PolynomialDecayOptions options);

struct CosineAnnealingOptions {
  int64_t half_period_steps = 0;  ///< From the base rate to `min_lr`. Required; torch's T_max.
  double min_lr = 0;              ///< A rate, not a ratio; torch's eta_min.
};
/// Falls to `min_lr` on a cosine and rises again, periodically: CosineAnnealingLR. Never ends.
Schedule cosine_annealing(CosineAnnealingOptions options);

struct CosineWarmRestartsOptions {
  int64_t first_cycle_steps = 0;  ///< Required; torch's T_0.
  int64_t cycle_factor = 1;       ///< Each cycle's length over the last one's; torch's T_mult.
  double min_lr = 0;              ///< A rate, not a ratio; torch's eta_min.
};
/// Falls towards `min_lr` on a cosine and jumps back: CosineAnnealingWarmRestarts. Never ends.
/// Modelled on Loshchilov, Hutter, "SGDR", 2017.
Schedule cosine_warm_restarts(CosineWarmRestartsOptions options);

enum class Anneal { kCosine, kLinear };

struct OneCycleOptions {
  std::vector<double> max_lr = {};  ///< One for all parameter groups, or one for each. Required.
  int64_t total_steps = 0;          ///< Required.
  double pct_start = 0.3;           ///< Part of the steps that rise.
  Anneal anneal_strategy = Anneal::kCosine;
  bool cycle_momentum = true;  ///< Moves momentum (Adam: the first beta) against the rate.
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         ///< max_lr over the first rate.
  double final_div_factor = 1e4;  ///< The first rate over the last one.
  bool three_phase = false;       ///< Falls as long as it rose, then continues to the last rate.
};
/// Rises from max_lr / div_factor to `max_lr` and falls far below its start: OneCycleLR. The
/// optimizer's own rate is ignored. The last rate is that of step total_steps - 1, and also of
/// `total_steps`, where torch extrapolates. Modelled on Smith, Topin, "Super-Convergence", 2017.
Schedule one_cycle(OneCycleOptions options);

}  // namespace lockstep::schedule
