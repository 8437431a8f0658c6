// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/ramp_schedules.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/schedule/schedule_checks.h"

namespace lockstep::schedule {
namespace {

/// The level of step `step`, from 0 to 1 while cycles keep their height.
double cyclic_height(const CyclicOptions& options, int64_t step) {
  const int64_t up = options.step_size_up;
  const int64_t length = up + options.step_size_down.value_or(up);
  const int64_t cycle = step / length;
  const int64_t within = step % length;
  const double height =
      within <= up ? static_cast<double>(within) / static_cast<double>(up)
                   : static_cast<double>(length - within) / static_cast<double>(length - up);
  switch (options.mode) {
    case CyclicMode::kTriangular:
      return height;
    case CyclicMode::kTriangular2:
      return height * std::pow(0.5, static_cast<double>(cycle));
    case CyclicMode::kExpRange:
      return height * std::pow(options.gamma, static_cast<double>(step));
  }
  return height;
}

}  // namespace

Schedule constant_factor(ConstantFactorOptions options) {
  const char* name = "constant_factor";
  detail::check_range(name, "factor", options.factor, 0, 1);
  detail::check_steps(name, "num_steps", options.num_steps, 1);
  ScheduleParts parts{.name = name, .lr = nullptr};
  parts.lr = [options](int64_t step, double base_lr, size_t) {
    return step < options.num_steps ? base_lr * options.factor : base_lr;
  };
  parts.marks = {{options.num_steps, "base rate"}};
  return Schedule(std::move(parts));
}

Schedule linear_factor(LinearFactorOptions options) {
  const char* name = "linear_factor";
  detail::check_range(name, "start_factor", options.start_factor, 0, 1);
  if (options.start_factor == 0) {
    throw ConfigError(name, "start_factor must be above 0; try a small one, such as 1e-8");
  }
  detail::check_range(name, "end_factor", options.end_factor, 0, 1);
  detail::check_steps(name, "num_steps", options.num_steps, 1);
  ScheduleParts parts{.name = name, .lr = nullptr};
  parts.lr = [options](int64_t step, double base_lr, size_t) {
    const double progress = static_cast<double>(std::min(step, options.num_steps)) /
                            static_cast<double>(options.num_steps);
    return base_lr *
           (options.start_factor + (options.end_factor - options.start_factor) * progress);
  };
  parts.marks = {{options.num_steps, "last change"}};
  return Schedule(std::move(parts));
}

Schedule cyclic(CyclicOptions options) {
  const char* name = "cyclic";
  detail::check_steps(name, "step_size_up", options.step_size_up, 1);
  detail::check_steps(name, "step_size_down", options.step_size_down.value_or(0), 0);
  detail::check_range(name, "gamma", options.gamma, 0);
  std::vector<detail::NamedList> lists = {
      {"base_lr", &options.base_lr}, {"max_lr", &options.max_lr}};
  if (options.cycle_momentum) {
    lists.push_back({"base_momentum", &options.base_momentum});
    lists.push_back({"max_momentum", &options.max_momentum});
    for (const std::vector<double>* momenta : {&options.base_momentum, &options.max_momentum}) {
      for (const double momentum : *momenta) {
        detail::check_range(name, "a momentum", momentum, 0, 1);
      }
    }
  }
  ScheduleParts parts{.name = name, .lr = nullptr, .groups = detail::group_count(name, lists)};
  if (options.cycle_momentum) {
    parts.momentum = [options](int64_t step, size_t group) {
      const double low = detail::value_for(options.base_momentum, group);
      const double high = detail::value_for(options.max_momentum, group);
      return high - (high - low) * cyclic_height(options, step);
    };
  }
  parts.marks = {{options.step_size_up, "first peak"}};
  parts.lr = [options = std::move(options)](int64_t step, double, size_t group) {
    const double low = detail::value_for(options.base_lr, group);
    const double high = detail::value_for(options.max_lr, group);
    return low + (high - low) * cyclic_height(options, step);
  };
  return Schedule(std::move(parts));
}

}  // namespace lockstep::schedule
