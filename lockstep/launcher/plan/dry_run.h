// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// Describes, for people, the processes that would be started on each host, with the variables that
/// the launcher sets for each rank. The port is 0 if any free one would be used.
std::string dry_run_text(const JobPlan& plan, const Program& program);

/// Describes the same as an object, for programs.
///
/// It has `world_size`, `command`, `program`, `run_id`, `master_addr`, `master_port`,
/// `max_restarts` and `hosts`. A host has `name` (null if unknown), `here`, `slots` and `ranks`. A
/// rank has `rank`, `local_rank`, `slot`, `cores` (empty without binding) and `environment`.
nlohmann::json dry_run_json(const JobPlan& plan, const Program& program);

}  // namespace lockstep::launcher
