// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/warmup_schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/schedule/schedule_checks.h"

namespace lockstep::schedule {
namespace {

using detail::check_range;
using detail::check_steps;
using detail::check_warmup;
using std::numbers::pi;

double ratio(int64_t part, int64_t total) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, total));
}

/// A linear warm-up to 1, then `decay(step)`.
template <typename Decay>
Schedule warm_up(
    const char* name, int64_t warmup_steps, std::optional<int64_t> total_steps, Decay decay) {
  ScheduleParts parts{.name = name, .lr = nullptr, .total_steps = total_steps};
  parts.lr = [warmup_steps, decay](int64_t step, double base_lr, size_t) {
    return base_lr * (step < warmup_steps ? ratio(step, warmup_steps) : decay(step));
  };
  if (warmup_steps > 0) {
    parts.marks.push_back({warmup_steps, "warm-up ends"});
  }
  return Schedule(std::move(parts));
}

double rise(Ramp ramp, double progress) {
  switch (ramp) {
    case Ramp::kLinear:
      return progress;
    case Ramp::kCosine:
      return 0.5 * (1 - std::cos(pi * progress));
    case Ramp::kOneMinusSqrt:
      return 1 - std::sqrt(1 - progress);
  }
  return progress;
}

double fall(Ramp ramp, double progress, double num_cycles) {
  switch (ramp) {
    case Ramp::kLinear:
      return 1 - progress;
    case Ramp::kCosine:
      return 0.5 * (1 + std::cos(pi * num_cycles * 2 * progress));
    case Ramp::kOneMinusSqrt:
      return 1 - std::sqrt(progress);
  }
  return 1 - progress;
}

int64_t stable_steps_of(const WarmupStableDecayOptions& options) {
  const char* name = "warmup_stable_decay";
  const int64_t rest = options.warmup_steps + options.decay_steps;
  if (options.total_steps) {
    check_steps(name, "total_steps", *options.total_steps, std::max<int64_t>(1, rest));
  }
  if (options.stable_steps) {
    check_steps(name, "stable_steps", *options.stable_steps, 0);
  }
  if (options.total_steps && options.stable_steps &&
      *options.total_steps != rest + *options.stable_steps) {
    throw ConfigError(
        name,
        fmt::format(
            "total_steps is not warmup_steps + stable_steps + decay_steps; got {} for {} + {} + "
            "{}; omit total_steps or stable_steps",
            *options.total_steps,
            options.warmup_steps,
            *options.stable_steps,
            options.decay_steps));
  }
  if (!options.total_steps && !options.stable_steps) {
    throw ConfigError(name, "needs total_steps or stable_steps; got neither");
  }
  return options.stable_steps ? *options.stable_steps : *options.total_steps - rest;
}

}  // namespace

Schedule constant() {
  return Schedule(
      {.name = "constant", .lr = [](int64_t, double base_lr, size_t) { return base_lr; }});
}

Schedule warmup_constant(WarmupConstantOptions options) {
  const char* name = "warmup_constant";
  check_steps(name, "warmup_steps", options.warmup_steps, 0);
  return warm_up(name, options.warmup_steps, std::nullopt, [](int64_t) { return 1.0; });
}

Schedule warmup_linear(WarmupLinearOptions options) {
  const char* name = "warmup_linear";
  const int64_t warmup = options.warmup_steps, total = options.total_steps;
  check_warmup(name, warmup, total);
  return warm_up(name, warmup, total, [=](int64_t step) {
    return std::max(0.0, ratio(total - step, total - warmup));
  });
}

Schedule warmup_cosine(WarmupCosineOptions options) {
  const char* name = "warmup_cosine";
  check_warmup(name, options.warmup_steps, options.total_steps);
  check_range(name, "num_cycles", options.num_cycles, 0);
  check_range(name, "min_lr_ratio", options.min_lr_ratio, 0, 1);
  return warm_up(name, options.warmup_steps, options.total_steps, [options](int64_t step) {
    const double progress =
        ratio(step - options.warmup_steps, options.total_steps - options.warmup_steps);
    const double factor = fall(Ramp::kCosine, progress, options.num_cycles);
    return std::max(0.0, factor * (1 - options.min_lr_ratio) + options.min_lr_ratio);
  });
}

Schedule warmup_cosine_restarts(WarmupCosineRestartsOptions options) {
  const char* name = "warmup_cosine_restarts";
  check_warmup(name, options.warmup_steps, options.total_steps);
  check_steps(name, "num_cycles", options.num_cycles, 1);
  return warm_up(name, options.warmup_steps, options.total_steps, [options](int64_t step) {
    const double progress =
        ratio(step - options.warmup_steps, options.total_steps - options.warmup_steps);
    if (progress >= 1) {
      return 0.0;
    }
    const double within = std::fmod(static_cast<double>(options.num_cycles) * progress, 1.0);
    return std::max(0.0, 0.5 * (1 + std::cos(pi * within)));
  });
}

Schedule warmup_polynomial(WarmupPolynomialOptions options) {
  const char* name = "warmup_polynomial";
  check_warmup(name, options.warmup_steps, options.total_steps);
  check_range(name, "lr_end", options.lr_end, 0);
  check_range(name, "power", options.power, 0);
  ScheduleParts parts{.name = name, .lr = nullptr, .total_steps = options.total_steps};
  parts.lr = [name, options](int64_t step, double base_lr, size_t) {
    if (!(base_lr > options.lr_end)) {
      throw ConfigError(
          name,
          fmt::format(
              "the optimizer's rate must be above lr_end; got {} and lr_end = {}",
              base_lr,
              options.lr_end));
    }
    if (step < options.warmup_steps) {
      return base_lr * ratio(step, options.warmup_steps);
    }
    if (step >= options.total_steps) {
      return options.lr_end;
    }
    const double left =
        1 - ratio(step - options.warmup_steps, options.total_steps - options.warmup_steps);
    return (base_lr - options.lr_end) * std::pow(left, options.power) + options.lr_end;
  };
  if (options.warmup_steps > 0) {
    parts.marks.push_back({options.warmup_steps, "warm-up ends"});
  }
  return Schedule(std::move(parts));
}

Schedule warmup_inverse_sqrt(WarmupInverseSqrtOptions options) {
  const char* name = "warmup_inverse_sqrt";
  constexpr int64_t kTimescaleWithoutWarmup = 10'000;
  const int64_t warmup = options.warmup_steps;
  check_steps(name, "warmup_steps", warmup, 0);
  const int64_t timescale =
      options.timescale.value_or(warmup > 0 ? warmup : kTimescaleWithoutWarmup);
  check_steps(name, "timescale", timescale, 1);
  return warm_up(name, warmup, std::nullopt, [warmup, timescale](int64_t step) {
    return 1 / std::sqrt(ratio(step + timescale - warmup, timescale));
  });
}

Schedule warmup_stable_decay(WarmupStableDecayOptions options) {
  const char* name = "warmup_stable_decay";
  check_steps(name, "warmup_steps", options.warmup_steps, 0);
  check_steps(name, "decay_steps", options.decay_steps, 0);
  check_range(name, "min_lr_ratio", options.min_lr_ratio, 0, 1);
  check_range(name, "num_cycles", options.num_cycles, 0);
  const int64_t decay_from = options.warmup_steps + stable_steps_of(options);
  const int64_t total = decay_from + options.decay_steps;
  check_steps(name, "total_steps", total, 1);
  ScheduleParts parts{.name = name, .lr = nullptr, .total_steps = total};
  parts.lr = [options, decay_from, total](int64_t step, double base_lr, size_t) {
    double factor = 0;
    if (step < options.warmup_steps) {
      factor = rise(options.warmup_type, ratio(step, options.warmup_steps));
    } else if (step < decay_from) {
      return base_lr;
    } else if (step < total) {
      factor = fall(
          options.decay_type, ratio(step - decay_from, options.decay_steps), options.num_cycles);
    }
    return base_lr * std::max(0.0, factor * (1 - options.min_lr_ratio) + options.min_lr_ratio);
  };
  parts.marks = {{options.warmup_steps, "warm-up ends"}, {decay_from, "decay starts"}};
  return Schedule(std::move(parts));
}

}  // namespace lockstep::schedule
