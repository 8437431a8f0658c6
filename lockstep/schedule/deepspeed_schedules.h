// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/schedule/schedule.h"

/// DeepSpeed's five schedules, with the option names of ds_config.json. A list holds one value for
/// all parameter groups, or one for each. As in DeepSpeed, step 0 has its own rate (the minimum, or
/// 0), and step s is batch iteration s - 1 of the formula. Every factory throws ConfigError for
/// invalid numbers.
namespace lockstep::schedule {

enum class DeepSpeedWarmup { kLog, kLinear };

struct DeepSpeedWarmupOptions {
  std::vector<double> warmup_min_lr = {0};
  std::vector<double> warmup_max_lr = {};  ///< Empty: the optimizer's rates.
  int64_t warmup_num_steps = 1000;         ///< 1 counts as 2.
  DeepSpeedWarmup warmup_type = DeepSpeedWarmup::kLog;
};
/// WarmupLR: rises to the maximum and stays there. Never ends.
Schedule deepspeed_warmup(const DeepSpeedWarmupOptions& options);

struct DeepSpeedWarmupDecayOptions {
  int64_t total_num_steps = 0;  ///< Required.
  std::vector<double> warmup_min_lr = {0};
  std::vector<double> warmup_max_lr = {0.001};
  int64_t warmup_num_steps = 1000;  ///< 1 counts as 2.
  DeepSpeedWarmup warmup_type = DeepSpeedWarmup::kLog;
};
/// WarmupDecayLR: rises to the maximum, then falls on a line to the minimum. A warm-up longer than
/// the schedule is a warning in the log, as in DeepSpeed.
Schedule deepspeed_warmup_decay(DeepSpeedWarmupDecayOptions options);

struct DeepSpeedWarmupCosineOptions {
  int64_t total_num_steps = 0;  ///< Required.
  double warmup_min_ratio = 0;
  int64_t warmup_num_steps = 1000;  ///< 1 counts as 2.
  double cos_min_ratio = 0.0001;
  DeepSpeedWarmup warmup_type = DeepSpeedWarmup::kLog;
};
/// WarmupCosineLR: rises to the optimizer's rate, then falls on a cosine to `cos_min_ratio` of it.
/// A warm-up longer than the schedule is a warning in the log, as in DeepSpeed.
Schedule deepspeed_warmup_cosine(DeepSpeedWarmupCosineOptions options);

struct DeepSpeedOneCycleOptions {
  std::vector<double> cycle_min_lr = {};  ///< Required.
  std::vector<double> cycle_max_lr = {};  ///< Required.
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size = std::nullopt;    ///< By default the first's.
  int64_t cycle_first_stair_count = 0;                             ///< 0: no stairs.
  std::optional<int64_t> cycle_second_stair_count = std::nullopt;  ///< By default the first's.
  int64_t decay_step_size = 0;                                     ///< 0: no decay after the cycle.
  /// Moves Adam's first beta; the second becomes 0.99. An optimizer without betas keeps its
  /// momentum.
  bool cycle_momentum = true;
  std::vector<double> cycle_min_mom = {0.8};
  std::vector<double> cycle_max_mom = {0.9};
  double decay_mom_rate = 0;
};
/// OneCycle: one cycle up and down, momentum against it, then a decay. Never ends.
Schedule deepspeed_one_cycle(DeepSpeedOneCycleOptions options);

struct DeepSpeedLrRangeTestOptions {
  std::vector<double> lr_range_test_min_lr = {1e-3};
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
};
/// LRRangeTest: always rises, to find the rate at which training diverges.
Schedule deepspeed_lr_range_test(DeepSpeedLrRangeTestOptions options);

}  // namespace lockstep::schedule
