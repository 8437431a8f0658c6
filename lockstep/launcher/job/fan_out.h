// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/config/settings/job_options.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// The program that starts a launcher on every host of a job.
enum class Starter { kSsh, kMpirun, kSrun };

/// Starts `lockstep node` on each of `plan`'s hosts, sends it a NodeSpec, and waits for all of
/// them. Returns the job's exit code.
///
/// This process runs no rank: a launcher on this machine does. The launchers' output is copied to
/// this process's. Signals are sent to the launcher of node 0, which forwards them to all. SIGTSTP
/// stops this process and pauses the ranks until SIGCONT. With ssh the launchers exit when their
/// stdin closes, so that no process remains on any host after this one ends in any way. A host that
/// cannot be reached ends the job, and is named.
///
/// Throws ConfigError if the starter is not installed.
int run_fan_out(
    Starter starter,
    const std::vector<std::string>& words,
    ProgramKind kind,
    const config::JobOptions& options,
    const JobPlan& plan);

/// Implements `lockstep node`: the launcher of one host, which run_fan_out() has started. Reads its
/// NodeSpec from kNodeSpecVariable if mpirun or srun has started it, else from the first line of
/// stdin. Further lines of stdin are commands, see ControlChannel. Returns as run_job() does.
int run_node();

inline constexpr const char* kNodeSpecVariable = "LOCKSTEP_NODE_SPEC";

}  // namespace lockstep::launcher
