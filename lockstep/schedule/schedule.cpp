// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/schedule.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::schedule {

Schedule::Schedule(ScheduleParts parts)
    : parts_(std::make_shared<const ScheduleParts>(std::move(parts))) {
  if (!parts_->lr) {
    throw ConfigError("schedule", fmt::format("{} has no function for the rate", parts_->name));
  }
  if (parts_->total_steps && *parts_->total_steps < 0) {
    throw ConfigError(
        parts_->name,
        fmt::format("total_steps must not be negative; got {}", *parts_->total_steps));
  }
}

void Schedule::check(int64_t step, size_t group) const {
  if (step < 0) {
    throw ConfigError(name(), fmt::format("steps count from 0; got step {}", step));
  }
  if (total_steps() && step > *total_steps()) {
    throw ConfigError(
        name(),
        fmt::format(
            "the schedule has ended; got step {}, expected at most total_steps = {}; try a larger "
            "total_steps, or fewer scheduler steps for each update",
            step,
            *total_steps()));
  }
  if (groups() && group >= *groups()) {
    throw ConfigError(
        name(),
        fmt::format(
            "the schedule has no values for parameter group {}; got values for {} groups, expected "
            "one value, or as many as the optimizer has groups",
            group,
            *groups()));
  }
}

double Schedule::lr(int64_t step, double base_lr, size_t group) const {
  check(step, group);
  return parts_->lr(step, base_lr, group);
}

std::optional<double> Schedule::momentum(int64_t step, size_t group) const {
  check(step, group);
  if (!parts_->momentum) {
    return std::nullopt;
  }
  return parts_->momentum(step, group);
}

Schedule Schedule::without_end() const {
  ScheduleParts parts = *parts_;
  parts.total_steps.reset();
  return Schedule(std::move(parts));
}

Schedule Schedule::without_momentum() const {
  ScheduleParts parts = *parts_;
  parts.momentum = nullptr;
  parts.beta2.reset();
  return Schedule(std::move(parts));
}

Schedule custom(std::function<double(int64_t step)> factor, std::optional<int64_t> total_steps) {
  if (!factor) {
    throw ConfigError("custom", "the schedule needs a function of the step; got an empty one");
  }
  return Schedule(
      {.name = "custom",
       .lr = [factor = std::move(factor)](
                 int64_t step, double base_lr, size_t) { return base_lr * factor(step); },
       .total_steps = total_steps});
}

std::string describe(const Schedule& schedule, double base_lr, int64_t steps) {
  steps = std::max<int64_t>(steps, 0);
  const int64_t last = std::min(steps, schedule.total_steps().value_or(steps));
  std::map<int64_t, std::string> points;
  for (const ScheduleMark& mark : schedule.marks()) {
    if (mark.step > 0 && mark.step < last) {
      points[mark.step] = mark.what;
    }
  }
  int64_t highest = 0;
  for (int64_t step = 1; step <= last; ++step) {
    if (schedule.lr(step, base_lr) > schedule.lr(highest, base_lr)) {
      highest = step;
    }
  }
  if (highest > 0 && highest < last) {
    points.emplace(highest, "highest");
  }
  points.emplace(0, "");
  points[last] = last == schedule.total_steps() ? "end" : "last";

  std::string text = fmt::format("{}: learning rate", schedule.name());
  if (schedule.groups().value_or(1) > 1) {
    text += fmt::format(" (of group 0 of {})", *schedule.groups());
  }
  const char* separator = " ";
  for (const auto& [step, what] : points) {
    text += fmt::format("{}{:.6g}", separator, schedule.lr(step, base_lr));
    if (const auto momentum = schedule.momentum(step)) {
      text += fmt::format(" (momentum {:.6g})", *momentum);
    }
    text += fmt::format(" at step {}{}", step, what.empty() ? "" : " (" + what + ")");
    separator = ", ";
  }
  if (schedule.total_steps() && steps > *schedule.total_steps()) {
    text += fmt::format(
        "; the run has {} steps, so step {} is an error", steps, *schedule.total_steps() + 1);
  } else if (schedule.total_steps() && steps < *schedule.total_steps()) {
    text += fmt::format("; the run stops before the end at step {}", *schedule.total_steps());
  }
  return text;
}

}  // namespace lockstep::schedule
