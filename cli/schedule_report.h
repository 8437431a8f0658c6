// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "cli/report.h"

namespace lockstep::cli {

constexpr int64_t kMostScheduleSteps = 1'000'000;

struct ScheduleRequest {
  std::filesystem::path file;
  int64_t steps = 1;              ///< At most kMostScheduleSteps.
  std::optional<double> base_lr;  ///< The optimizer's rate, in place of the file's.
  bool plot = false;
  bool log_errors = true;  ///< Those of the file, on stderr; see refusal_of.
};

/// The learning rates and momenta of a ds_config.json, from step 0 on, as a table or a drawing.
/// ConfigError for a file that cannot be read, has no scheduler, or leaves out a rate that the
/// schedule begins with.
///
/// As JSON: {"file", "type", "base_lr", "steps", "ends_at": step or null, "lr": [...], "momentum":
/// [...] or null, "beta2": number or null, "marks": [{"step", "what"}]}; "lr" has a list for each
/// step if there are values for several parameter groups, and "momentum", too.
Report schedule_report(const ScheduleRequest& request);

}  // namespace lockstep::cli
