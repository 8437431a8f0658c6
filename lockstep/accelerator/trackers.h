// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// Holds the open trackers of AcceleratorOptions::log_with on this process. Not thread-safe.
class Trackers {
 public:
  explicit Trackers(const RunContext& context) : context_(context) {}

  /// See Accelerator::init_trackers. Throws ConfigError if they are open, or one is null.
  void init(const nlohmann::json& config);
  /// Logs to all trackers, which it opens if necessary.
  void log(const std::map<std::string, double>& values, int64_t step);
  /// Closes the trackers as finished.
  void finish();

 private:
  const RunContext& context_;
  std::vector<std::shared_ptr<tracking::Tracker>> trackers_;
  bool open_ = false;
};

}  // namespace lockstep
