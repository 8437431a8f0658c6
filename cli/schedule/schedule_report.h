// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "cli/common/report.h"

namespace lockstep::cli {

constexpr int64_t kMostScheduleSteps = 1'000'000;

struct ScheduleRequest {
  std::filesystem::path file;
  int64_t steps = 1;              ///< At most kMostScheduleSteps.
  std::optional<double> base_lr;  ///< The optimizer's rate, instead of the file's.
  bool plot = false;
  bool log_errors = true;  ///< Log errors of the file; see refusal_of.
};

/// Reports the learning rates and momenta of a ds_config.json, from step 0 on, as a table or a
/// plot. Throws ConfigError for a file that cannot be read, has no scheduler, or omits the initial
/// rate of the schedule.
///
/// Each parameter group of the schedule, or of the file's optimizer, has a curve. Muon has two
/// groups. muP's optimizers have several, of which one is shown, since the others depend on the
/// model.
///
/// JSON: {"file", "type", "base_lr", "groups", "steps", "ends_at": step or null, "lr": [...],
/// "momentum": [...] or null, "beta2": number or null, "marks": [{"step", "what"}]}. "groups" is
/// the description of the parameters; "" means all, or unknown. With several groups it is a list,
/// as "base_lr" is; "lr" and "momentum" then have a list for each step.
Report schedule_report(const ScheduleRequest& request);

}  // namespace lockstep::cli
