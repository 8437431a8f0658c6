// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "lockstep/config/settings/job_options.h"
#include "lockstep/launcher/output/report.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// Receives the report of a failed job, instead of stderr.
using FailureSink = std::function<void(const FailureReport& failure)>;

/// Runs `program` as the ranks of `options` on this machine, and returns the job's exit code.
///
/// The exit code is 0 if every rank ended with 0; 75 if all ended with 0 or 75 (state saved after a
/// request to stop); 124 at the time limit; 141 (SIGPIPE) if the reader of this process's output
/// has closed it. If a rank failed, it is the code of the rank that failed first, or 128 + its
/// signal. If a forwarded signal ended the job, it is 128 + that signal.
///
/// The ranks' output is copied line by line to this process's, and to files as the options say.
/// Rank 0 reads this process's stdin unless that is a terminal, which a background process group
/// may not read; other ranks read nothing. After a rank fails, the rest get SIGTERM and two seconds
/// later SIGKILL. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded; a second
/// SIGINT or SIGTERM kills at once. When this returns or throws, no process of the job is left; if
/// this process is killed, its watchdog ends them.
///
/// A failed job is restarted with all ranks, up to `max_restarts` times, from its newest complete
/// checkpoint: LOCKSTEP_RESUME=1. The delays double from `restart_backoff_seconds` up to 30 s.
/// A job is not restarted after a signal to this process, at the time limit, and if a rank ended
/// with 2 (a usage error) or 75. The last failure is reported once, at the end, on stderr, with a
/// line for each of the latest ten attempts.
///
/// In a job of several hosts each host has a launcher, including this one: see NodeSession.
///
/// Throws ConfigError or Error if not all ranks could be started, or not all launchers joined.
/// Memory: a few hundred bytes per rank, plus at most 64 KiB for each unfinished line. Other
/// threads may run, but none that waits for arbitrary children (waitpid(-1)).
int run_job(
    const Program& program, const config::JobOptions& options, const FailureSink& on_failure = {});

/// The connection of a launcher with the process that started it, and with other launchers.
struct NodeContext {
  std::string token{};  ///< The job's secret; empty: kTokenVariable has it.
  int command_fd = -1;  ///< The descriptor of a ControlChannel; -1: none.
};

inline constexpr const char* kTokenVariable = "LOCKSTEP_JOB_TOKEN";

/// Runs a job as run_job() does, for an existing plan.
int run_planned_job(
    const Program& program,
    const config::JobOptions& options,
    const JobPlan& plan,
    const NodeContext& context,
    FailureSink on_failure = {});

/// Returns the delay before restart `number`, from 1.
double restart_delay_seconds(double backoff_seconds, int number);

}  // namespace lockstep::launcher
