// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/schedule/reduce_on_plateau.h"
#include "lockstep/schedule/schedule.h"

namespace lockstep {

namespace internal {
class TrainingStep;
}  // namespace internal

using AnySchedule = std::variant<schedule::Schedule, schedule::ReduceOnPlateauOptions>;

template <typename T>
concept ScheduleHandle =
    std::is_same_v<T, schedule::Schedule> || std::is_same_v<T, schedule::ReduceOnPlateauOptions>;

/// The calls at which a Scheduler advances, and by how many steps; derived from AcceleratorOptions.
struct SchedulerPolicy {
  bool with_optimizer = true;     ///< Skip micro-steps without an update, and skipped updates.
  int inner_steps = 1;            ///< Schedule steps for each call.
  bool accelerate = false;        ///< Count and end as Accelerate does.
  bool count_micro_steps = true;  ///< Accelerate's adjust_scheduler.
};

/// A prepared schedule, which sets the learning rates of its optimizers. A handle.
///
/// prepare() sets step 0's rates; each `step()`, called after the optimizer's, sets the next ones.
/// Base rates are those of the optimizers when the schedule was prepared. Stepping a schedule past
/// its end throws ConfigError; with SchedulerSteps::kAccelerate it keeps its last rates.
class [[nodiscard]] Scheduler {
 public:
  Scheduler() = default;  ///< Empty; only for later assignment.
  Scheduler(
      AnySchedule schedule,
      SchedulerPolicy policy,
      std::shared_ptr<const internal::TrainingStep> step);

  /// Takes control of the optimizers' rates, once. Throws ConfigError without an optimizer, or for
  /// a schedule with values for another number of parameter groups.
  void bind(std::vector<Optimizer> optimizers);

  /// Call it after an update. Throws ConfigError for a reduce_on_plateau, which needs a metric.
  void step();
  /// Advances a reduce_on_plateau by its metric, which must be equal on all processes. Throws
  /// ConfigError for other schedules.
  void step(double metric);
  /// Returns the current rates of the first optimizer's parameter groups.
  std::vector<double> get_last_lr() const;
  /// Returns the number of completed steps of the schedule.
  int64_t steps() const;
  /// Describes the schedule in words, up to its end, or for `steps` steps (0: 1000 for an endless
  /// one).
  std::string describe(int64_t steps = 0) const;

  /// Returns the state for checkpoints.
  nlohmann::json state() const;
  /// Checks that `state` belongs to this schedule, changes nothing, and returns a function that
  /// applies it. Throws CheckpointError, naming `path`.
  std::function<void()> check_state(
      const nlohmann::json& state, const std::string& path, const std::string& where = "") const;

  friend bool operator==(const Scheduler&, const Scheduler&) = default;

 private:
  struct State;
  bool skips_step() const;
  void apply() const;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
