// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// What would be started where, and with which variables: those the launcher sets for each rank,
/// besides all that it inherits. A port that would be any free one is 0. For people.
std::string dry_run_text(const JobPlan& plan, const Program& program);

/// The same as an object: `world_size`, `command`, `run_id`, `master_addr`, `master_port`, and
/// `hosts`, each with `name` (null if nobody knows it), `here`, `slots` and `ranks`, each with
/// `rank`, `local_rank`, `slot`, `cores` (empty if it is not tied to any) and `environment`.
nlohmann::json dry_run_json(const JobPlan& plan, const Program& program);

}  // namespace lockstep::launcher
