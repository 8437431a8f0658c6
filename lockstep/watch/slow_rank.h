// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

/// A rank that the others wait for again and again.
struct SlowRank {
  int rank = 0;
  std::string what;  ///< For people.
};

/// The rank that the others wait for.
///
/// On one host, whose clock is one: who came last, and alone, to nearly all of the latest
/// operations of all ranks, if that cost the others more than a fifth of the time, and 0.1 s. On
/// several, or where too few operations are known of all: who spends less of its time in operations
/// than every other, by more than a fifth of the time. Judges by no fewer than 20 operations.
std::optional<SlowRank> find_slow_rank(const std::vector<RankView>& ranks);

/// Part of the time since the first operation of the job's own group that `record` remembers which
/// the rank has spent in such; nothing if they are fewer than 20.
std::optional<double> part_in_operations(const FlightRecord& record);

}  // namespace lockstep::watch
