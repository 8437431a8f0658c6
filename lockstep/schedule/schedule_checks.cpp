// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/schedule_checks.h"

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::schedule::detail {

void check_range(const char* schedule, const char* option, double value, double low, double high) {
  if (!std::isfinite(value) || value < low || value > high) {
    const std::string limit = std::isfinite(high) ? fmt::format("from {} to {}", low, high)
                                                  : fmt::format("at least {}", low);
    throw ConfigError(
        schedule, fmt::format("invalid value {} for {}; expected {}", value, option, limit));
  }
}

void check_steps(const char* schedule, const char* option, int64_t value, int64_t low) {
  if (value < low) {
    throw ConfigError(
        schedule, fmt::format("invalid value {} for {}; expected at least {}", value, option, low));
  }
}

void check_warmup(const char* schedule, int64_t warmup_steps, int64_t total_steps) {
  check_steps(schedule, "warmup_steps", warmup_steps, 0);
  check_steps(schedule, "total_steps", total_steps, 1);
  if (warmup_steps > total_steps) {
    throw ConfigError(
        schedule,
        fmt::format(
            "the warm-up is longer than the schedule; got warmup_steps = {}, expected at most "
            "total_steps = {}",
            warmup_steps,
            total_steps));
  }
}

std::optional<size_t> group_count(const char* schedule, const std::vector<NamedList>& lists) {
  std::optional<size_t> count;
  for (const NamedList& list : lists) {
    const size_t size = list.values->size();
    if (size == 0) {
      throw ConfigError(schedule, fmt::format("{} needs at least one value", list.option));
    }
    for (const double value : *list.values) {
      check_range(schedule, list.option, value, 0);
    }
    if (size > 1 && count && *count != size) {
      throw ConfigError(
          schedule,
          fmt::format(
              "two lists have different numbers of parameter groups; got {} values for {}, "
              "expected {}",
              size,
              list.option,
              *count));
    }
    if (size > 1) {
      count = size;
    }
  }
  return count;
}

double value_for(const std::vector<double>& values, size_t group) {
  return values[values.size() == 1 ? 0 : group];
}

}  // namespace lockstep::schedule::detail
