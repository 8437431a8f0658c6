// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/trackers.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/tracking/registry.h"

namespace lockstep {

void Trackers::init(const nlohmann::json& config) {
  if (open_) {
    throw ConfigError(
        "init_trackers",
        "the trackers are already open; call init_trackers() once, before the first log()");
  }
  const AcceleratorOptions& options = context_.options;
  for (const tracking::TrackerChoice& choice : options.log_with) {
    if (choice.is_own() && choice.tracker() == nullptr) {
      throw ConfigError(
          "init_trackers",
          "log_with holds a null pointer; got no tracker, expected a name or "
          "std::make_shared<MyTracker>()");
    }
  }
  open_ = true;
  for (const tracking::TrackerChoice& choice : options.log_with) {
    const bool main_only = !choice.is_own() || choice.tracker()->main_process_only();
    if (main_only && context_.rank() != 0) {
      continue;
    }
    if (choice.is_own()) {
      trackers_.push_back(choice.tracker());
    } else {
      trackers_.push_back(tracking::make_tracker(
          choice.name(), {options.project_config.logging_dir, options.project_name}));
    }
    if (!config.empty()) {
      trackers_.back()->store_config(config);
    }
  }
}

void Trackers::log(const std::map<std::string, double>& values, int64_t step) {
  if (!open_) {
    init(nlohmann::json::object());
  }
  for (const auto& tracker : trackers_) {
    tracker->log(values, step);
  }
}

void Trackers::finish() {
  for (const auto& tracker : trackers_) {
    tracker->finish();
  }
}

}  // namespace lockstep
