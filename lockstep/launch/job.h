// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/launch/program.h"

namespace lockstep::launcher {

struct JobOptions {
  int ranks = 1;
  int threads_per_rank =
      0;                ///< OMP_NUM_THREADS; 0: the environment's, else an even share of the cores.
  int master_port = 0;  ///< 0: any free one.
  double grace_seconds = 30;  ///< Between a signal that was passed on and SIGKILL.
  bool rank_prefix = false;   ///< "[rank N] " before each line of output.
  bool quiet = false;         ///< Only the failure report.
  bool resume = false;        ///< Ranks load their newest checkpoint first, if there is one.
  bool json = false;          ///< The failure report as one line of JSON.
};

/// Runs `program` as `options.ranks` processes of this machine and returns the job's exit code:
///   0 if every rank ended with 0; 75 if all ended with 0 or 75 (told to stop, state saved);
///   the code, or 128 + the signal, of the rank that failed first;
///   128 + the signal that was passed on, if that ended the job;
///   141 (SIGPIPE) if nobody reads our output any more.
///
/// The ranks' output is copied line by line to ours. rank 0 reads our stdin unless that is a
/// terminal, which a background process group may not read; the others read nothing. Once a rank
/// fails, the rest get SIGTERM and two seconds later SIGKILL, and the failure is reported, last and
/// once, on stderr. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on; a second
/// SIGINT or SIGTERM kills at once. When this returns or throws, no process of the job is left; if
/// this process is killed, its watchdog sees to that.
///
/// Throws ConfigError or Error when not all ranks could be started. Memory: a few hundred bytes a
/// rank, plus at most 64 KiB for each unfinished line. Call from a single-threaded process.
int run_job(const Program& program, const JobOptions& options);

}  // namespace lockstep::launcher
