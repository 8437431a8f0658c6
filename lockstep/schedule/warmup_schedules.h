// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/schedule/schedule.h"

/// The schedules of transformers' `get_..._schedule`. A linear warm-up rises from 0 to the base
/// rate in `warmup_steps` steps (0: none); then the named curve follows. The base rate is the
/// optimizer's. Every factory throws ConfigError for a warm-up longer than the schedule, a missing
/// `total_steps`, and invalid numbers.
namespace lockstep::schedule {

/// Stays at the base rate from the first step.
Schedule constant();

struct WarmupConstantOptions {
  int64_t warmup_steps = 0;
};
/// Stays at the base rate. Never ends.
Schedule warmup_constant(WarmupConstantOptions options);

struct WarmupLinearOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  ///< Warm-up included; required.
};
/// Falls linearly to 0 at `total_steps`.
Schedule warmup_linear(WarmupLinearOptions options);

struct WarmupCosineOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  ///< Warm-up included; required.
  double num_cycles = 0.5;  ///< Waves of the cosine; a half falls once.
  double min_lr_ratio = 0;  ///< The lowest rate over the base rate.
};
/// Falls on a cosine to `min_lr_ratio` of the base rate. Modelled on Loshchilov, Hutter, "SGDR",
/// 2017.
Schedule warmup_cosine(WarmupCosineOptions options);

struct WarmupCosineRestartsOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  ///< Warm-up included; required.
  int64_t num_cycles = 1;
};
/// Falls to 0 `num_cycles` times, jumping back to the base rate in between.
Schedule warmup_cosine_restarts(WarmupCosineRestartsOptions options);

struct WarmupPolynomialOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  ///< Warm-up included; required.
  double lr_end = 1e-7;     ///< A rate, not a ratio.
  double power = 1;
};
/// Falls to `lr_end` as (1 - progress)^power. A base rate that is not above `lr_end` is a
/// ConfigError of `lr`. Every parameter group ends at `lr_end`, where transformers scales the
/// second one's end by the first one's rate.
Schedule warmup_polynomial(WarmupPolynomialOptions options);

struct WarmupInverseSqrtOptions {
  int64_t warmup_steps = 0;
  std::optional<int64_t> timescale =
      std::nullopt;  ///< By default the warm-up's length, or 10000 without one.
};
/// Falls as 1 / sqrt(step). Never ends. Modelled on Vaswani et al., "Attention Is All You Need",
/// 2017.
Schedule warmup_inverse_sqrt(WarmupInverseSqrtOptions options);

/// The curve of a warm-up from 0 to 1, and of a decay back.
enum class Ramp { kLinear, kCosine, kOneMinusSqrt };

struct WarmupStableDecayOptions {
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  std::optional<int64_t> total_steps = std::nullopt;   ///< Give this one,
  std::optional<int64_t> stable_steps = std::nullopt;  ///< or this one, or both if they agree.
  Ramp warmup_type = Ramp::kLinear;
  Ramp decay_type = Ramp::kCosine;
  double min_lr_ratio = 0;  ///< The lowest rate over the base rate, at both ends.
  double num_cycles = 0.5;  ///< Waves of a cosine decay; a half falls once.
};
/// Stays at the base rate for `stable_steps`, then falls to `min_lr_ratio` of it in `decay_steps`.
/// "WSD", modelled on Hu et al., "MiniCPM", 2024.
Schedule warmup_stable_decay(WarmupStableDecayOptions options);

}  // namespace lockstep::schedule
