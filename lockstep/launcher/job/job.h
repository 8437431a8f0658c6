// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "lockstep/launcher/plan/job_options.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"
#include "lockstep/launcher/output/report.h"

namespace lockstep::launcher {

/// Gets the report of a job that failed, instead of stderr.
using FailureSink = std::function<void(const FailureReport& failure)>;

/// Runs `program` as the ranks that `options` ask for, on this machine, and returns the job's exit
/// code:
///   0 if every rank ended with 0; 75 if all ended with 0 or 75 (told to stop, state saved);
///   the code, or 128 + the signal, of the rank that failed first;
///   128 + the signal that was passed on, if that ended the job;
///   124 if it ran into its time limit;
///   141 (SIGPIPE) if nobody reads our output any more.
///
/// The ranks' output is copied line by line to ours, and to files as the options say. Rank 0 reads
/// our stdin unless that is a terminal, which a background process group may not read; the others
/// read nothing. Once a rank fails, the rest get SIGTERM and two seconds later SIGKILL. SIGINT,
/// SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on; a second SIGINT or SIGTERM kills at
/// once. When this returns or throws, no process of the job is left; if this process is killed, its
/// watchdog sees to that.
///
/// A job that failed is started anew, all ranks of it, up to `max_restarts` times, to go on from
/// its newest whole checkpoint: LOCKSTEP_RESUME=1. The waits between double from
/// `restart_backoff_seconds` up to 30 s. Not so after a signal to us, at the time limit, and where
/// a rank ended with 2 (a wrong call) or 75. The last failure is reported, last and once, on
/// stderr, with a line for each of the latest ten.
///
/// In a job of several hosts each has a launcher, which is this one here: see NodeSession.
///
/// Throws ConfigError or Error when not all ranks could be started, or not all launchers came.
/// Memory: a few hundred bytes a rank, plus at most 64 KiB for each unfinished line. Other threads
/// may run, but none that waits for children that are not its own (waitpid(-1)).
int run_job(const Program& program, const JobOptions& options, const FailureSink& on_failure = {});

/// How a launcher finds the others of its job, if another process has started it.
struct NodePlace {
  std::string token{};  ///< Empty: kTokenVariable has it.
  int orders = -1;      ///< See Outside.
};

inline constexpr const char* kTokenVariable = "LOCKSTEP_JOB_TOKEN";

/// The same, of a plan that is made.
int run_planned_job(
    const Program& program,
    const JobOptions& options,
    const JobPlan& plan,
    const NodePlace& place,
    FailureSink on_failure = {});

/// How long to wait before restart `number`, from 1.
double restart_delay_seconds(double backoff_seconds, int number);

}  // namespace lockstep::launcher
