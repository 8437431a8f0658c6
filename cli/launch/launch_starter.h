// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/launch/launch_flags.h"
#include "lockstep/base/env.h"
#include "lockstep/launcher/job/fan_out.h"
#include "lockstep/launcher/plan/plan.h"

namespace lockstep::cli {

/// What --launcher leaves for the plan to know: under SLURM the first host of the allocation is
/// where ranks meet. ConfigError for a launcher nobody knows, or one that lacks what it needs.
void prepare_starter(
    const LaunchFlags& flags, const Environment& environment, launcher::JobOptions& options);

/// Gives the hosts of `plan` the names of the allocation's nodes if srun starts their launchers and
/// no hostfile names them. ConfigError where SLURM_JOB_NODELIST is not set or malformed.
void name_allocated_hosts(
    const LaunchFlags& flags, const Environment& environment, launcher::JobPlan& plan);

/// Who starts the launchers of `plan`'s hosts; nothing if this process is one of them itself.
std::optional<launcher::Starter> starter_of(
    const LaunchFlags& flags, const launcher::JobPlan& plan);

}  // namespace lockstep::cli
