// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::schedule {

/// A notable step of a schedule: "warm-up ends" at 100.
struct ScheduleMark {
  int64_t step = 0;
  std::string what;
};

/// The parts of a schedule. The functions are only called with legal steps and groups.
struct ScheduleParts {
  /// The factory's name: "warmup_cosine".
  std::string name;
  std::function<double(int64_t step, double base_lr, size_t group)> lr;
  /// Empty: the schedule does not change the momentum.
  std::function<double(int64_t step, size_t group)> momentum = nullptr;
  /// The value of the second beta, set together with the momentum.
  std::optional<double> beta2 = std::nullopt;
  /// The momentum is for betas only: an optimizer without betas keeps its momentum.
  bool betas_only = false;
  /// The last legal step; none: it never ends.
  std::optional<int64_t> total_steps = std::nullopt;
  /// The number of parameter groups with values; none: any number.
  std::optional<size_t> groups = std::nullopt;
  std::vector<ScheduleMark> marks = {};
};

/// A learning rate as a pure function of the step: resuming it needs the step and nothing else.
///
/// Step s is the number of scheduler steps done. Step 0 is the rate at construction, so the n-th
/// update of a run (from 1) uses the rate of step n - 1. A run of N updates with a scheduler step
/// after each ends at step N, which a schedule of N steps still allows. Step N + 1 is an error,
/// because the run was planned with fewer steps.
///
/// A value type: copies are cheap. Thread-safe, if a custom function is.
class Schedule {
 public:
  explicit Schedule(ScheduleParts parts);

  /// Returns the rate of step `step` for parameter group `group`, whose rate at construction was
  /// `base_lr`. Schedules with absolute rates, such as OneCycle, ignore `base_lr`. Throws
  /// ConfigError for a step below 0 or past the end, and for a group without values.
  double lr(int64_t step, double base_lr, size_t group = 0) const;
  /// Returns SGD's momentum, or Adam's first beta; nothing if the schedule does not change it.
  std::optional<double> momentum(int64_t step, size_t group = 0) const;
  /// Returns Adam's second beta, set with the first; DeepSpeed's OneCycle only.
  std::optional<double> beta2() const { return parts_->beta2; }

  /// Returns whether an optimizer without betas keeps its momentum; DeepSpeed's OneCycle only.
  bool cycles_betas_only() const { return parts_->momentum && parts_->betas_only; }

  const std::string& name() const { return parts_->name; }
  /// Returns the last legal step; nothing if the schedule never ends.
  std::optional<int64_t> total_steps() const { return parts_->total_steps; }
  /// Returns the number of parameter groups with values; nothing for any number.
  std::optional<size_t> groups() const { return parts_->groups; }
  const std::vector<ScheduleMark>& marks() const { return parts_->marks; }

  /// Returns the same schedule without an error past its end, where its formula continues as in the
  /// original library. Most stay at their last rate; a cosine with cycles rises again.
  Schedule without_end() const;
  /// Returns the same rates without changes of momentum and betas.
  Schedule without_momentum() const;

 private:
  void check(int64_t step, size_t group) const;
  std::shared_ptr<const ScheduleParts> parts_;
};

/// Multiplies the base rate by `factor(step)`, as torch's LambdaLR. Throws ConfigError if `factor`
/// is empty or `total_steps` negative.
Schedule custom(
    std::function<double(int64_t step)> factor, std::optional<int64_t> total_steps = std::nullopt);

/// Describes the schedule of a run of `steps` updates in one line. Example: "warmup_cosine:
/// learning rate 0 at step 0, 0.0003 at step 100 (warm-up ends), 0 at step 5000 (end)". The line
/// reports a run that is longer or shorter than the schedule. Of several groups it shows group 0.
/// `steps` below 0 count as 0. Costs `steps` evaluations.
std::string describe(const Schedule& schedule, double base_lr, int64_t steps);

}  // namespace lockstep::schedule
