// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

/// Describes a job that makes no progress.
struct Stall {
  std::vector<int> ranks;  ///< The ranks that the others wait for; never empty.
  std::string what;        ///< "rank 1 has not started all_reduce(sum) of float32[10], ..."
};

/// Finds the stall of these ranks, if one has lasted for `timeout_ns`:
///
/// - a rank waits that long in an operation of a group. Its stalled members are those that have not
///   started it, or are stopped. If all members have started it, all are stalled, since the
///   connection between them is the cause;
/// - a signal has kept a rank stopped that long, see find_stopped();
/// - every watched rank has been idle that long: no operation, no step, no use of the processor. A
///   rank in a debugger does not count as idle.
///
/// A rank that computes while no rank waits for it is not stalled. Members of a group are the ranks
/// with a recent operation of it; for the job's group all ranks. Waiting counts from `since_ns` at
/// the earliest: the end of the last pause.
std::optional<Stall> find_stall(
    const std::vector<RankView>& ranks, int64_t now, int64_t timeout_ns, int64_t since_ns = 0);

/// Finds the ranks that a signal (SIGSTOP, SIGTSTP) has kept stopped for `timeout_ns`. Includes
/// ranks that have left the job, or never joined it; ignores ranks held by a debugger.
std::optional<Stall> find_stopped(const std::vector<RankView>& ranks, int64_t timeout_ns);

/// Names a rank without which a job cannot start.
struct AbsentRank {
  int rank = 0;
  std::string what;  ///< "it ended before it joined the job, and rank 0 waits for it; ..."
};

/// Finds a rank that ended with exit code 0 and never joined, while another one waits in connect().
/// `world`: the number of ranks that it waits for. Returns nothing once a rank has started an
/// operation.
std::optional<AbsentRank> find_ended_before_join(const std::vector<RankView>& ranks, int world);

/// Finds a stopped rank that never joined, while `waiter` was in connect().
std::optional<AbsentRank> find_stopped_before_join(
    const std::vector<RankView>& ranks, int world, int waiter);

/// Returns whether to wait for a save of these ranks, which are all ranks of one host.
///
/// That is so if a rank that writes has made progress within `pause_ns`. It is also so if all ranks
/// that save wait for a rank of another host, which that host's launcher watches.
bool save_progresses(const std::vector<RankView>& ranks, int64_t pause_ns);

}  // namespace lockstep::watch
