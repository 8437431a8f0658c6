// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

/// A rank that repeatedly makes the others wait.
struct SlowRank {
  int rank = 0;
  std::string what;  ///< For people.
};

/// Finds the rank that the others wait for.
///
/// On one host, with one clock: the only last one in nearly all of the latest operations of all
/// ranks, if that cost the others more than a fifth of the time, and 0.1 s. On several hosts, or
/// with too few common operations: the one that spends less of its time in operations than every
/// other, by more than a fifth of the time. Needs at least 20 operations.
std::optional<SlowRank> find_slow_rank(const std::vector<RankView>& ranks);

/// Returns the share of time that the rank has spent in operations of the job's group, since the
/// first one in `record`; nothing for less than 20.
std::optional<double> share_in_operations(const FlightRecord& record);

}  // namespace lockstep::watch
