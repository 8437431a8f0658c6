// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

/// A job that does not go on.
struct Stall {
  std::vector<int> ranks;  ///< Those the others wait for; never empty.
  std::string what;        ///< "rank 1 has not come to all_reduce(sum) of float32[10], ..."
};

/// The stall of these ranks, if there is one that has lasted for `timeout_ns`:
///
/// - a rank waits that long in an operation of a group. To blame are the members that have not
///   asked for it, or are stopped; if all of them are in it, all, since then it is what lies
///   between them;
/// - a signal has kept a rank stopped that long, see find_stopped();
/// - every watched rank has been idle that long: no operation, no step, no use of the processor. A
///   rank in a debugger does not count as idle.
///
/// A rank that computes while nobody waits for it is not stalled, however long it takes. Of a
/// group's members those count that have an operation of it among their last; of the job's own
/// group all ranks do. Waiting counts from `since_ns` at the earliest: the end of the last pause.
std::optional<Stall> find_stall(
    const std::vector<RankView>& ranks, int64_t now, int64_t timeout_ns, int64_t since_ns = 0);

/// The ranks that a signal (SIGSTOP, SIGTSTP) has kept stopped for `timeout_ns`: watched ones, and
/// those that have left the job, or never joined it, too. A debugger that holds a rank is not
/// meant.
std::optional<Stall> find_stopped(const std::vector<RankView>& ranks, int64_t timeout_ns);

/// A rank for which the others wait in vain to begin a job of `world` ranks; nothing if there is
/// none.
struct AbsentRank {
  int rank = 0;
  std::string what;  ///< "it ended before it joined the job, and rank 0 waits for it; ..."
};

/// The rank that has ended with 0 and never joined, while another one waits in connect() for all
/// ranks. Nobody waits once any rank has done an operation.
std::optional<AbsentRank> find_ended_before_join(const std::vector<RankView>& ranks, int world);

/// The rank that a signal keeps stopped and that never joined, while `waiter` was in connect().
std::optional<AbsentRank> find_stopped_before_join(
    const std::vector<RankView>& ranks, int world, int waiter);

/// Whether a save of these ranks, which are all of one host, is to be waited for: one that writes
/// has done something within `pause_ns`; or all that save wait, which can only be for a rank of
/// another host, whose launcher sees it.
bool save_gets_on(const std::vector<RankView>& ranks, int64_t pause_ns);

}  // namespace lockstep::watch
