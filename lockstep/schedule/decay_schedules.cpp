// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/decay_schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/schedule/schedule_checks.h"

namespace lockstep::schedule {
namespace {

using detail::check_range;
using detail::check_steps;
using std::numbers::pi;

/// Interpolates from `from` to `to` as `progress` goes from 0 to 1.
double anneal(Anneal strategy, double from, double to, double progress) {
  if (strategy == Anneal::kLinear) {
    return (to - from) * progress + from;
  }
  return to + (from - to) / 2 * (std::cos(pi * progress) + 1);
}

/// A phase of OneCycle. Levels of rate and momentum: 0 is the start, 1 the highest, 2 the last.
enum class Level { kStart, kHigh, kLast };
struct Phase {
  double end_step;
  Level from;
  Level to;
};

std::vector<Phase> phases_of(const OneCycleOptions& options) {
  const auto total = static_cast<double>(options.total_steps);
  const double rise_end = options.pct_start * total - 1;
  if (!options.three_phase) {
    return {{rise_end, Level::kStart, Level::kHigh}, {total - 1, Level::kHigh, Level::kLast}};
  }
  return {
      {rise_end, Level::kStart, Level::kHigh},
      {2 * options.pct_start * total - 2, Level::kHigh, Level::kStart},
      {total - 1, Level::kStart, Level::kLast}};
}

struct Place {
  Level from;
  Level to;
  double progress;
};

Place place_of(const std::vector<Phase>& phases, int64_t step) {
  const auto at = static_cast<double>(step);
  double start = 0;
  size_t index = 0;
  while (index + 1 < phases.size() && at > phases[index].end_step) {
    start = phases[index++].end_step;
  }
  const Phase& phase = phases[index];
  const double length = phase.end_step - start;
  return {phase.from, phase.to, length > 0 ? std::min(1.0, (at - start) / length) : 1.0};
}

void check_one_cycle(const char* name, const OneCycleOptions& options) {
  check_steps(name, "total_steps", options.total_steps, 1);
  check_range(name, "pct_start", options.pct_start, 0, 1);
  check_range(name, "base_momentum", options.base_momentum, 0, 1);
  check_range(name, "max_momentum", options.max_momentum, 0, 1);
  if (options.three_phase && options.pct_start > 0.5) {
    throw ConfigError(
        name,
        fmt::format(
            "pct_start is too large: with three_phase the rate rises and falls for pct_start of "
            "the steps each; got pct_start = {}, expected at most 0.5",
            options.pct_start));
  }
  for (const auto& [option, value] :
       {std::pair{"div_factor", options.div_factor},
        std::pair{"final_div_factor", options.final_div_factor}}) {
    if (!(value > 0) || !std::isfinite(value)) {
      throw ConfigError(name, fmt::format("{} must be above 0; got {}", option, value));
    }
  }
}

}  // namespace

Schedule step_decay(StepDecayOptions options) {
  const char* name = "step_decay";
  check_steps(name, "step_size", options.step_size, 1);
  check_range(name, "gamma", options.gamma, 0);
  ScheduleParts parts{.name = name, .lr = nullptr};
  parts.lr = [options](int64_t step, double base_lr, size_t) {
    const int64_t drops = step / options.step_size;
    return base_lr * std::pow(options.gamma, static_cast<double>(drops));
  };
  parts.marks = {{options.step_size, "first drop"}};
  return Schedule(std::move(parts));
}

Schedule multi_step_decay(MultiStepDecayOptions options) {
  const char* name = "multi_step_decay";
  check_range(name, "gamma", options.gamma, 0);
  std::sort(options.milestones.begin(), options.milestones.end());
  ScheduleParts parts{.name = name, .lr = nullptr};
  for (const int64_t milestone : options.milestones) {
    check_steps(name, "a milestone", milestone, 0);
    parts.marks.push_back({milestone, "milestone"});
  }
  parts.lr = [options = std::move(options)](int64_t step, double base_lr, size_t) {
    const auto& all = options.milestones;
    const auto passed = std::upper_bound(all.begin(), all.end(), step) - all.begin();
    return base_lr * std::pow(options.gamma, static_cast<double>(passed));
  };
  return Schedule(std::move(parts));
}

Schedule exponential_decay(ExponentialDecayOptions options) {
  const char* name = "exponential_decay";
  if (!(options.gamma > 0) || !std::isfinite(options.gamma)) {
    throw ConfigError(name, fmt::format("gamma must be above 0; got {}", options.gamma));
  }
  return Schedule(
      {.name = name, .lr = [gamma = options.gamma](int64_t step, double base_lr, size_t) {
         return base_lr * std::pow(gamma, static_cast<double>(step));
       }});
}

Schedule polynomial_decay(PolynomialDecayOptions options) {
  const char* name = "polynomial_decay";
  check_steps(name, "total_steps", options.total_steps, 1);
  check_range(name, "power", options.power, 0);
  ScheduleParts parts{.name = name, .lr = nullptr, .total_steps = options.total_steps};
  parts.lr = [options](int64_t step, double base_lr, size_t) {
    const auto done = static_cast<double>(std::min(step, options.total_steps));
    return base_lr * std::pow(1 - done / static_cast<double>(options.total_steps), options.power);
  };
  return Schedule(std::move(parts));
}

Schedule cosine_annealing(CosineAnnealingOptions options) {
  const char* name = "cosine_annealing";
  check_steps(name, "half_period_steps", options.half_period_steps, 1);
  check_range(name, "min_lr", options.min_lr, 0);
  ScheduleParts parts{.name = name, .lr = nullptr};
  parts.lr = [options](int64_t step, double base_lr, size_t) {
    // Full periods are subtracted first: the cosine of a large angle is not exact.
    const auto within = static_cast<double>(step % (2 * options.half_period_steps));
    const double angle = pi * within / static_cast<double>(options.half_period_steps);
    return options.min_lr + (base_lr - options.min_lr) * (1 + std::cos(angle)) / 2;
  };
  parts.marks = {{options.half_period_steps, "lowest"}};
  return Schedule(std::move(parts));
}

Schedule cosine_warm_restarts(CosineWarmRestartsOptions options) {
  const char* name = "cosine_warm_restarts";
  check_steps(name, "first_cycle_steps", options.first_cycle_steps, 1);
  check_steps(name, "cycle_factor", options.cycle_factor, 1);
  check_range(name, "min_lr", options.min_lr, 0);
  ScheduleParts parts{.name = name, .lr = nullptr};
  parts.lr = [options](int64_t step, double base_lr, size_t) {
    int64_t within = step;
    int64_t length = options.first_cycle_steps;
    if (options.cycle_factor == 1) {
      within %= length;
    }
    while (within >= length) {
      within -= length;
      length *= options.cycle_factor;
    }
    const double angle = pi * static_cast<double>(within) / static_cast<double>(length);
    return options.min_lr + (base_lr - options.min_lr) * (1 + std::cos(angle)) / 2;
  };
  parts.marks = {{options.first_cycle_steps, "first restart"}};
  return Schedule(std::move(parts));
}

Schedule one_cycle(OneCycleOptions options) {
  const char* name = "one_cycle";
  check_one_cycle(name, options);
  ScheduleParts parts{
      .name = name,
      .lr = nullptr,
      .total_steps = options.total_steps,
      .groups = detail::group_count(name, {{"max_lr", &options.max_lr}})};
  const std::vector<Phase> phases = phases_of(options);
  if (options.cycle_momentum) {
    parts.momentum = [options, phases](int64_t step, size_t) {
      const auto momentum_at = [&](Level level) {
        return level == Level::kHigh ? options.base_momentum : options.max_momentum;
      };
      const Place at = place_of(phases, step);
      return anneal(options.anneal_strategy, momentum_at(at.from), momentum_at(at.to), at.progress);
    };
  }
  parts.lr = [options = std::move(options), phases](int64_t step, double, size_t group) {
    const double high = detail::value_for(options.max_lr, group);
    const double start = high / options.div_factor;
    const auto rate_at = [&](Level level) {
      return level == Level::kHigh    ? high
             : level == Level::kStart ? start
                                      : start / options.final_div_factor;
    };
    const Place at = place_of(phases, step);
    return anneal(options.anneal_strategy, rate_at(at.from), rate_at(at.to), at.progress);
  };
  return Schedule(std::move(parts));
}

}  // namespace lockstep::schedule
