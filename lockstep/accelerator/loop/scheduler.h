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

#include "lockstep/accelerator/loop/optimizer.h"
#include "lockstep/schedule/reduce_on_plateau.h"
#include "lockstep/schedule/schedule.h"

namespace lockstep {

using AnySchedule = std::variant<optim::Schedule, optim::ReduceOnPlateauOptions>;

template <typename T>
concept ScheduleHandle =
    std::is_same_v<T, optim::Schedule> || std::is_same_v<T, optim::ReduceOnPlateauOptions>;

/// When a Scheduler advances, and by how much; made of AcceleratorOptions.
struct SchedulerPolicy {
  bool with_optimizer = true;     ///< Hold back in micro-steps, and where the update was left out.
  int inner_steps = 1;            ///< A call advances the schedule by this many steps.
  bool accelerate = false;        ///< Count and end as Accelerate does.
  bool count_micro_steps = true;  ///< Accelerate's adjust_scheduler.
};

/// A prepared schedule: sets the learning rates of its optimizers. A handle.
///
/// Step 0's rates are set when it is prepared; each `step()`, called after the optimizer's, sets
/// the next. Base rates are those the optimizers had when the schedule was prepared. A schedule
/// that is stepped past its end is a ConfigError; with SchedulerSteps::kAccelerate it stays where
/// it is. Thread safety: none.
class Scheduler {
 public:
  Scheduler() = default;  ///< Empty; only to be assigned to.
  Scheduler(AnySchedule schedule, SchedulerPolicy policy, std::shared_ptr<LoopState> loop);

  /// Takes over the optimizers' rates. Once; ConfigError without an optimizer, or for a schedule
  /// with values for another number of parameter groups.
  void bind(std::vector<Optimizer> optimizers);

  /// After an update. ConfigError for a reduce_on_plateau, which needs a metric.
  void step();
  /// With the metric that reduce_on_plateau watches: the same on every process. ConfigError for
  /// others.
  void step(double metric);
  /// The rates of the first optimizer's parameter groups now.
  std::vector<double> get_last_lr() const;
  /// Steps of the schedule done.
  int64_t steps() const;
  /// The schedule in words, up to its end, or for `steps` steps (0: of one without end, 1000).
  std::string describe(int64_t steps = 0) const;

  /// For checkpoints.
  nlohmann::json state() const;
  /// Checks that `state` is of this schedule, changes nothing and returns what puts it in.
  /// CheckpointError naming `path`.
  std::function<void()> check_state(
      const nlohmann::json& state, const std::string& path, const std::string& where = "") const;

  friend bool operator==(const Scheduler&, const Scheduler&) = default;

 private:
  struct State;
  bool held_back() const;
  void apply() const;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
