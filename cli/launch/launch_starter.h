// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/launch/launch_flags.h"
#include "lockstep/base/env.h"
#include "lockstep/launcher/job/fan_out.h"
#include "lockstep/launcher/plan/plan.h"

namespace lockstep::cli {

/// Checks --launcher and adds the options that it implies. Under SLURM these are the number of
/// hosts, and the first node of the allocation as the rendezvous address. Throws ConfigError for an
/// unknown launcher, for ssh and mpirun without a hostfile, and for srun without an allocation.
void prepare_starter(
    const LaunchFlags& flags, const Environment& environment, config::JobOptions& options);

/// Names the hosts of `plan` after the allocation's nodes if srun starts their launchers without a
/// hostfile. Throws ConfigError if SLURM_JOB_NODELIST is missing or malformed.
void name_allocated_hosts(
    const LaunchFlags& flags, const Environment& environment, launcher::JobPlan& plan);

/// Returns the program that starts the launchers of `plan`'s hosts; nothing if this process is one
/// of these launchers.
std::optional<launcher::Starter> starter_of(
    const LaunchFlags& flags, const launcher::JobPlan& plan);

}  // namespace lockstep::cli
