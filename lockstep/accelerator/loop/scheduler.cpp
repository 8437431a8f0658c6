// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/optim/state/momentum.h"
#include "lockstep/storage/safetensors/saved_values.h"

namespace lockstep {

struct Scheduler::State {
  AnySchedule schedule;
  SchedulerPolicy policy;
  std::shared_ptr<const internal::TrainingStep> step;
  std::vector<Optimizer> optimizers = {};
  std::vector<std::vector<double>> base_rates = {};  ///< [optimizer][group]
  std::vector<bool> cycles_momentum = {};            ///< [optimizer]
  int64_t steps = 0;
  int64_t counted = 1;  ///< As torch counts calls, for Accelerate's way of ending a schedule.
  std::optional<int64_t> stop_at = std::nullopt;
  std::optional<int64_t> ends_at = std::nullopt;  ///< For describe, also where nothing stops it.

  std::optional<schedule::ReduceOnPlateau> plateau = std::nullopt;

  /// Returns null for a schedule that depends on a metric.
  const schedule::Schedule* of_steps() const { return std::get_if<schedule::Schedule>(&schedule); }
};

namespace {

/// [optimizer][group]
std::vector<std::vector<double>> base_rates_of(const storage::SavedValues& values) {
  std::vector<std::vector<double>> rates;
  for (const nlohmann::json& of_optimizer : values.list("base_rates")) {
    const nlohmann::json whole{{"rates", of_optimizer}};
    const std::string place = fmt::format("{}[{}]", values.place_of("base_rates"), rates.size());
    rates.push_back(storage::SavedValues(whole, values.path(), place).numbers("rates"));
  }
  return rates;
}

}  // namespace

Scheduler::Scheduler(
    AnySchedule schedule,
    SchedulerPolicy policy,
    std::shared_ptr<const internal::TrainingStep> step)
    : state_(std::make_shared<State>(State{std::move(schedule), policy, std::move(step)})) {
  const schedule::Schedule* of_steps = state_->of_steps();
  if (of_steps != nullptr) {
    state_->ends_at = of_steps->total_steps();
  }
  if (policy.accelerate && of_steps != nullptr) {
    // Accelerate stops only this schedule; the others' formulas continue past their ends.
    if (of_steps->name() == "one_cycle") {
      state_->stop_at = of_steps->total_steps();
    }
    state_->schedule = of_steps->without_end();
  }
}

void Scheduler::bind(std::vector<Optimizer> optimizers) {
  State& state = *state_;
  if (optimizers.empty()) {
    throw ConfigError(
        "prepare",
        "the schedule has no optimizer; prepare the optimizer before the schedule or in the same "
        "call");
  }
  for (const Optimizer& optimizer : optimizers) {
    state.base_rates.push_back(optimizer.learning_rates());
    const schedule::Schedule* schedule = state.of_steps();
    const bool cycles = schedule != nullptr &&
                        (!schedule->cycles_betas_only() || optim::has_betas(optimizer.inner()));
    if (schedule != nullptr && !cycles) {
      log_warning(fmt::format(
          "{} cycles betas, but the optimizer has none: its momentum stays constant; set "
          "cycle_momentum to false",
          schedule->name()));
    }
    state.cycles_momentum.push_back(cycles);
    const size_t groups = state.base_rates.back().size();
    if (schedule != nullptr && schedule->groups() && *schedule->groups() != groups) {
      throw ConfigError(
          "prepare",
          fmt::format(
              "schedule {} has values for {} parameter groups; the optimizer has {}",
              schedule->name(),
              *schedule->groups(),
              groups));
    }
  }
  state.optimizers = std::move(optimizers);
  if (state.of_steps() != nullptr) {
    apply();
    return;
  }
  std::vector<double> rates;
  for (const std::vector<double>& some : state.base_rates) {
    rates.insert(rates.end(), some.begin(), some.end());
  }
  state.plateau.emplace(
      std::move(rates), std::get<schedule::ReduceOnPlateauOptions>(state.schedule));
}

bool Scheduler::skips_step() const {
  State& state = *state_;
  if (!state.policy.with_optimizer) {
    return false;
  }
  if (!state.step->sync_gradients()) {
    if (state.policy.count_micro_steps) {
      ++state.counted;
    }
    return true;
  }
  return std::any_of(
      state.optimizers.begin(), state.optimizers.end(), [](const Optimizer& optimizer) {
        return optimizer.step_was_skipped();
      });
}

void Scheduler::apply() const {
  const State& state = *state_;
  if (state.plateau) {
    auto next = state.plateau->lrs().begin();
    for (const Optimizer& optimizer : state.optimizers) {
      const auto count = static_cast<std::ptrdiff_t>(optimizer.learning_rates().size());
      optimizer.set_learning_rates({next, next + count});
      next += count;
    }
    return;
  }
  const schedule::Schedule& schedule = *state.of_steps();
  for (size_t i = 0; i < state.optimizers.size(); ++i) {
    std::vector<double> rates;
    for (size_t group = 0; group < state.base_rates[i].size(); ++group) {
      rates.push_back(schedule.lr(state.steps, state.base_rates[i][group], group));
      const auto momentum = schedule.momentum(state.steps, group);
      if (momentum && state.cycles_momentum[i]) {
        optim::set_momentum(state.optimizers[i].inner(), group, *momentum, schedule.beta2());
      }
    }
    state.optimizers[i].set_learning_rates(rates);
  }
}

void Scheduler::step() {
  State& state = *state_;
  const schedule::Schedule* schedule = state.of_steps();
  if (schedule == nullptr) {
    throw ConfigError(
        "scheduler",
        "reduce_on_plateau needs a metric; call step(validation_loss) after each epoch");
  }
  if (skips_step()) {
    return;
  }
  const int inner_steps = state.policy.with_optimizer ? state.policy.inner_steps : 1;
  const int64_t before = state.steps;
  for (int i = 0; i < inner_steps; ++i) {
    if (state.stop_at && state.counted > *state.stop_at) {
      continue;
    }
    ++state.steps;
    ++state.counted;
  }
  try {
    apply();
  } catch (...) {
    state.steps = before;
    throw;
  }
}

void Scheduler::step(double metric) {
  State& state = *state_;
  if (!state.plateau) {
    throw ConfigError("scheduler", "this schedule depends on steps; call step() without a metric");
  }
  if (skips_step()) {
    return;
  }
  ++state.steps;
  state.plateau->step(metric);
  apply();
}

std::vector<double> Scheduler::get_last_lr() const {
  return state_->optimizers.front().learning_rates();
}

int64_t Scheduler::steps() const {
  return state_->steps;
}

std::string Scheduler::describe(int64_t steps) const {
  const schedule::Schedule* schedule = state_->of_steps();
  if (schedule == nullptr) {
    return "reduce_on_plateau: follows a metric";
  }
  const int64_t shown = steps > 0 ? steps : state_->ends_at.value_or(1000);
  std::string text = schedule::describe(
      state_->cycles_momentum.front() ? *schedule : schedule->without_momentum(),
      state_->base_rates.front().front(),
      shown);
  if (state_->policy.inner_steps > 1 && state_->policy.with_optimizer) {
    text += fmt::format("; {} scheduler steps per update", state_->policy.inner_steps);
  }
  return text;
}

nlohmann::json Scheduler::state() const {
  State& state = *state_;
  nlohmann::json saved{
      {"steps", state.steps}, {"counted", state.counted}, {"base_rates", state.base_rates}};
  if (state.plateau) {
    saved["plateau"] = state.plateau->state();
  } else {
    saved["schedule"] = state.of_steps()->name();
  }
  return saved;
}

std::function<void()> Scheduler::check_state(
    const nlohmann::json& saved, const std::string& path, const std::string& where) const {
  State& state = *state_;
  const storage::SavedValues values(saved, path, where);
  const std::string is = state.plateau ? "plateau" : "schedule";
  if (!saved.contains(is) || (is == "schedule" && saved.at(is) != state.of_steps()->name())) {
    throw CheckpointError(
        path, fmt::format("holds another schedule than this program prepared: {}", saved.dump()));
  }
  std::vector<std::vector<double>> rates = base_rates_of(values);
  const bool fits = std::equal(
      rates.begin(),
      rates.end(),
      state.base_rates.begin(),
      state.base_rates.end(),
      [](const auto& a, const auto& b) { return a.size() == b.size(); });
  if (!fits) {
    throw CheckpointError(
        path,
        "holds a schedule for other parameter groups; prepare an optimizer with the same groups");
  }
  const int64_t steps = values.count("steps");
  if (!state.plateau && state.of_steps()->total_steps().value_or(steps) < steps) {
    throw CheckpointError(
        path,
        fmt::format(
            "was saved after {} steps of its schedule, but this program's schedule ends after {}; "
            "give it at least as many total steps",
            steps,
            *state.of_steps()->total_steps()));
  }
  std::optional<schedule::ReduceOnPlateau> plateau = state.plateau;
  if (plateau) {
    try {
      plateau->load_state(values.any("plateau"));
    } catch (const ConfigError& error) {
      throw CheckpointError(
          path,
          fmt::format(
              "holds no state of reduce_on_plateau in {}; {}",
              values.place_of("plateau"),
              without_rank_suffix(error.what())));
    }
  }
  return [scheduler = *this,
          kept = state_,
          steps,
          counted = values.count("counted"),
          rates = std::move(rates),
          plateau = std::move(plateau)] {
    kept->steps = steps;
    kept->counted = counted;
    kept->base_rates = rates;
    kept->plateau = plateau;
    scheduler.apply();  // The schedule may be another one than the rates were saved under.
  };
}

}  // namespace lockstep
