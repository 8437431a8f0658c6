// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

/// Common checks of the factories of schedules. `schedule` and `option` name the place in messages.
namespace lockstep::schedule::detail {

/// Throws ConfigError unless `value` is a finite number from `low` to `high`.
void check_range(
    const char* schedule,
    const char* option,
    double value,
    double low,
    double high = std::numeric_limits<double>::infinity());

/// Throws ConfigError unless `value` is at least `low`.
void check_steps(const char* schedule, const char* option, int64_t value, int64_t low);

/// Throws ConfigError unless 0 <= warm-up <= total and 0 < total.
void check_warmup(const char* schedule, int64_t warmup_steps, int64_t total_steps);

/// An option given as a list: one value for all parameter groups, or one for each.
struct NamedList {
  const char* option;
  const std::vector<double>* values;
};

/// Returns the number of parameter groups of `lists`; nothing if each has one value. Throws
/// ConfigError if one is empty or has a value below 0, or two differ in length.
std::optional<size_t> group_count(const char* schedule, const std::vector<NamedList>& lists);

/// Returns the value of `group` in such a list.
double value_for(const std::vector<double>& values, size_t group);

}  // namespace lockstep::schedule::detail
