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
  std::optional<double> base_lr;  ///< The optimizer's rate, in place of the file's.
  bool plot = false;
  bool log_errors = true;  ///< Those of the file, on stderr; see refusal_of.
};

/// The learning rates and momenta of a ds_config.json, from step 0 on, as a table or a drawing.
/// ConfigError for a file that cannot be read, has no scheduler, or leaves out a rate that the
/// schedule begins with.
///
/// There is a curve for each parameter group that the schedule has values for, or that the file's
/// optimizer makes: Muon two, muP's one of several, since the others depend on the model.
///
/// As JSON: {"file", "type", "base_lr", "groups", "steps", "ends_at": step or null, "lr": [...],
/// "momentum": [...] or null, "beta2": number or null, "marks": [{"step", "what"}]}. "groups" is
/// what parameters the rates are of; "" is all, or what the file does not say. With several groups
/// it is a list, and so is "base_lr"; "lr" has a list for each step then, and "momentum", too.
Report schedule_report(const ScheduleRequest& request);

}  // namespace lockstep::cli
