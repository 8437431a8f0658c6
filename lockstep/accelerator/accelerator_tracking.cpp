// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/base/error.h"
#include "lockstep/tracking/registry.h"

namespace lockstep {

void Accelerator::init_trackers(const nlohmann::json& config) {
  State& state = *state_;
  if (state.trackers_open) {
    throw ConfigError(
        "init_trackers", "the trackers are open already; call it once, before the first log()");
  }
  for (const tracking::TrackerChoice& choice : state.options.log_with) {
    if (choice.is_own() && choice.tracker() == nullptr) {
      throw ConfigError(
          "init_trackers",
          "log_with holds a null pointer; got no tracker, expected a name or "
          "std::make_shared<MyTracker>()");
    }
  }
  state.trackers_open = true;
  for (const tracking::TrackerChoice& choice : state.options.log_with) {
    const bool main_only = !choice.is_own() || choice.tracker()->main_process_only();
    if (main_only && !is_main_process()) {
      continue;
    }
    if (choice.is_own()) {
      state.trackers.push_back(choice.tracker());
    } else {
      state.trackers.push_back(tracking::make_tracker(
          choice.name(), {state.options.project_config.logging_dir, state.options.project_name}));
    }
    if (!config.empty()) {
      state.trackers.back()->store_config(config);
    }
  }
}

void Accelerator::log(const std::map<std::string, double>& values, std::optional<int64_t> step) {
  State& state = *state_;
  if (!state.trackers_open) {
    init_trackers(nlohmann::json::object());
  }
  const int64_t at = step ? *step : state.optimizers.empty() ? 0 : state.optimizers.front().steps();
  for (const auto& tracker : state.trackers) {
    tracker->log(values, at);
  }
}

void Accelerator::end_training() {
  wait_for_save();
  wait_for_everyone();
  state_->loop->losses.warn_at_end(state_->group);
  for (const auto& tracker : state_->trackers) {
    tracker->finish();
  }
}

}  // namespace lockstep
