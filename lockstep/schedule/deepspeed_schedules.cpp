// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/deepspeed_schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/schedule/schedule_checks.h"

namespace lockstep::schedule {
namespace {

using detail::check_range;
using detail::check_steps;
using detail::group_count;
using detail::value_for;
using std::numbers::pi;

/// DeepSpeed's warm-up, by its batch iteration `i`, which is one behind our step.
struct WarmupRamp {
  int64_t num_steps;
  DeepSpeedWarmup type;

  WarmupRamp(const char* name, int64_t warmup_num_steps, DeepSpeedWarmup warmup_type)
      : num_steps(std::max<int64_t>(2, warmup_num_steps)), type(warmup_type) {
    check_steps(name, "warmup_num_steps", warmup_num_steps, 1);
  }
  bool covers(int64_t i) const { return i < num_steps; }
  double at(int64_t i) const {
    const auto length = static_cast<double>(num_steps);
    return type == DeepSpeedWarmup::kLinear
               ? static_cast<double>(i) / length
               : 1 / std::log(length) * std::log(static_cast<double>(i + 1));
  }
  /// Returns the step of the iteration after the last one of the warm-up.
  ScheduleMark mark() const { return {num_steps + 1, "warm-up ends"}; }
};

void warn_of_long_warmup(const char* name, int64_t total_num_steps, const WarmupRamp& ramp) {
  check_steps(name, "total_num_steps", total_num_steps, 1);
  if (total_num_steps < ramp.num_steps) {
    log_warning(fmt::format(
        "{}: the warm-up of {} steps is longer than total_num_steps = {}",
        name,
        ramp.num_steps,
        total_num_steps));
  }
}

double between(double low, double high, double factor) {
  return low + (high - low) * factor;
}

/// The level of iteration `i` in the cycle, from 0 to 1.
struct Cycle {
  double first_size;
  double second_size;
  int64_t first_stairs;
  int64_t second_stairs;

  double total() const { return first_size + second_size; }
  double height(int64_t i) const {
    const auto at = static_cast<double>(i + 1);
    // From the full offset, as DeepSpeed does: a rounding error below a stair would lose one.
    const double offset = std::fmod(at, total());
    const bool rising = offset <= first_size;
    const int64_t stairs = rising ? first_stairs : second_stairs;
    if (stairs > 0) {
      const auto count = static_cast<double>(stairs);
      const double position =
          rising ? offset * count / first_size : (total() - offset) * count / second_size;
      return std::floor(position) / count;
    }
    const double x = 1 + at / total() - std::floor(1 + at / total());
    const double peak = first_size / total();
    return x <= peak ? x / peak : (x - 1) / (peak - 1);
  }
};

Cycle cycle_of(const char* name, const DeepSpeedOneCycleOptions& options) {
  const int64_t second = options.cycle_second_step_size.value_or(options.cycle_first_step_size);
  const int64_t stairs = options.cycle_second_stair_count.value_or(options.cycle_first_stair_count);
  check_steps(name, "cycle_first_step_size", options.cycle_first_step_size, 1);
  check_steps(name, "cycle_second_step_size", second, 0);
  check_steps(name, "cycle_first_stair_count", options.cycle_first_stair_count, 0);
  check_steps(name, "cycle_second_stair_count", stairs, 0);
  return {
      static_cast<double>(options.cycle_first_step_size),
      static_cast<double>(second),
      options.cycle_first_stair_count,
      stairs};
}

/// Returns the number of decay steps before iteration `i` after the cycle; 0 without a decay.
double decay_interval(const Cycle& cycle, int64_t decay_step_size, int64_t i) {
  return decay_step_size == 0
             ? 0
             : (static_cast<double>(i) - cycle.total() + 1) / static_cast<double>(decay_step_size);
}

}  // namespace

Schedule deepspeed_warmup(const DeepSpeedWarmupOptions& options) {
  const char* name = "deepspeed_warmup";
  const WarmupRamp ramp(name, options.warmup_num_steps, options.warmup_type);
  const std::vector<double>& max = options.warmup_max_lr;
  const std::vector<detail::NamedList> lists = {
      {"warmup_min_lr", &options.warmup_min_lr},
      {"warmup_max_lr", max.empty() ? &options.warmup_min_lr : &max}};
  ScheduleParts parts{.name = name, .lr = nullptr, .groups = group_count(name, lists)};
  parts.lr = [options, ramp](int64_t step, double base_lr, size_t group) {
    const int64_t i = step - 1;
    const double low = value_for(options.warmup_min_lr, group);
    const double high =
        options.warmup_max_lr.empty() ? base_lr : value_for(options.warmup_max_lr, group);
    return i < 0 ? low : between(low, high, ramp.covers(i) ? ramp.at(i) : 1);
  };
  parts.marks = {ramp.mark()};
  return Schedule(std::move(parts));
}

Schedule deepspeed_warmup_decay(DeepSpeedWarmupDecayOptions options) {
  const char* name = "deepspeed_warmup_decay";
  const WarmupRamp ramp(name, options.warmup_num_steps, options.warmup_type);
  warn_of_long_warmup(name, options.total_num_steps, ramp);
  ScheduleParts parts{
      .name = name,
      .lr = nullptr,
      .total_steps = options.total_num_steps,
      .groups = group_count(
          name,
          {{"warmup_min_lr", &options.warmup_min_lr}, {"warmup_max_lr", &options.warmup_max_lr}})};
  parts.lr = [options, ramp](int64_t step, double, size_t group) {
    const int64_t i = step - 1;
    const double low = value_for(options.warmup_min_lr, group);
    const double high = value_for(options.warmup_max_lr, group);
    if (i < 0) {
      return low;
    }
    const auto left = static_cast<double>(options.total_num_steps - i);
    const auto decay_steps =
        static_cast<double>(std::max<int64_t>(1, options.total_num_steps - ramp.num_steps));
    return between(low, high, ramp.covers(i) ? ramp.at(i) : std::max(0.0, left / decay_steps));
  };
  parts.marks = {ramp.mark(), {options.total_num_steps, "end"}};
  return Schedule(std::move(parts));
}

Schedule deepspeed_warmup_cosine(DeepSpeedWarmupCosineOptions options) {
  const char* name = "deepspeed_warmup_cosine";
  const WarmupRamp ramp(name, options.warmup_num_steps, options.warmup_type);
  warn_of_long_warmup(name, options.total_num_steps, ramp);
  check_range(name, "warmup_min_ratio", options.warmup_min_ratio, 0, 1);
  check_range(name, "cos_min_ratio", options.cos_min_ratio, 0, 1);
  ScheduleParts parts{.name = name, .lr = nullptr, .total_steps = options.total_num_steps};
  parts.lr = [options, ramp](int64_t step, double base_lr, size_t) {
    const int64_t i = step - 1;
    if (i < 0) {
      return 0.0;
    }
    if (ramp.covers(i)) {
      return base_lr * between(options.warmup_min_ratio, 1, ramp.at(i));
    }
    const auto decay_steps =
        static_cast<double>(std::max<int64_t>(1, options.total_num_steps - ramp.num_steps));
    const double progress =
        std::min(1.0, static_cast<double>(i - ramp.num_steps + 1) / decay_steps);
    const double wave = (1 + std::cos(pi * progress)) / 2;
    return base_lr * std::max(0.0, between(options.cos_min_ratio, 1, wave));
  };
  parts.marks = {{ramp.num_steps, "warm-up ends"}, {options.total_num_steps, "end"}};
  return Schedule(std::move(parts));
}

Schedule deepspeed_one_cycle(DeepSpeedOneCycleOptions options) {
  const char* name = "deepspeed_one_cycle";
  constexpr double kSecondBeta = 0.99;  // DeepSpeed's value, for every optimizer.
  const Cycle cycle = cycle_of(name, options);
  check_steps(name, "decay_step_size", options.decay_step_size, 0);
  check_range(name, "decay_lr_rate", options.decay_lr_rate, 0);
  check_range(name, "decay_mom_rate", options.decay_mom_rate, 0);
  std::vector<detail::NamedList> lists = {
      {"cycle_min_lr", &options.cycle_min_lr}, {"cycle_max_lr", &options.cycle_max_lr}};
  if (options.cycle_momentum) {
    lists.push_back({"cycle_min_mom", &options.cycle_min_mom});
    lists.push_back({"cycle_max_mom", &options.cycle_max_mom});
  }
  ScheduleParts parts{.name = name, .lr = nullptr, .groups = group_count(name, lists)};
  if (options.cycle_momentum) {
    parts.beta2 = kSecondBeta;
    parts.betas_only = true;
    parts.momentum = [options, cycle](int64_t step, size_t group) {
      const int64_t i = step - 1;
      const double low = value_for(options.cycle_min_mom, group);
      const double high = value_for(options.cycle_max_mom, group);
      if (i < 0) {
        return low;
      }
      if (static_cast<double>(i) < cycle.total()) {
        return high - (high - low) * cycle.height(i);
      }
      return high *
             (1 + options.decay_mom_rate * decay_interval(cycle, options.decay_step_size, i));
    };
  }
  parts.marks = {
      {options.cycle_first_step_size, "top of the cycle"},
      {static_cast<int64_t>(cycle.total()), "cycle ends"}};
  parts.lr = [options = std::move(options), cycle](int64_t step, double, size_t group) {
    const int64_t i = step - 1;
    const double low = value_for(options.cycle_min_lr, group);
    if (i < 0) {
      return low;
    }
    if (static_cast<double>(i) < cycle.total()) {
      return between(low, value_for(options.cycle_max_lr, group), cycle.height(i));
    }
    return low / (1 + options.decay_lr_rate * decay_interval(cycle, options.decay_step_size, i));
  };
  return Schedule(std::move(parts));
}

Schedule deepspeed_lr_range_test(DeepSpeedLrRangeTestOptions options) {
  const char* name = "deepspeed_lr_range_test";
  check_steps(name, "lr_range_test_step_size", options.lr_range_test_step_size, 1);
  check_range(name, "lr_range_test_step_rate", options.lr_range_test_step_rate, 0);
  ScheduleParts parts{
      .name = name,
      .lr = nullptr,
      .groups = group_count(name, {{"lr_range_test_min_lr", &options.lr_range_test_min_lr}})};
  parts.lr = [options = std::move(options)](int64_t step, double, size_t group) {
    double interval =
        static_cast<double>(step) / static_cast<double>(options.lr_range_test_step_size);
    if (options.lr_range_test_staircase) {
      interval = std::floor(interval);
    }
    return value_for(options.lr_range_test_min_lr, group) *
           (1 + options.lr_range_test_step_rate * interval);
  };
  return Schedule(std::move(parts));
}

}  // namespace lockstep::schedule
