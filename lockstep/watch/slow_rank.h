// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

/// Names a rank that repeatedly makes the others wait.
struct SlowRank {
  int rank = 0;
  std::string what;  ///< The message for the user.
};

/// Finds the rank that the others wait for. Needs at least 20 operations.
///
/// - On one host, with one clock: the rank that was last in nearly all of the latest operations.
///   The others must have waited for more than a fifth of the time, and 0.1 s.
/// - On several hosts, or with too few common operations: the rank with the least share of time in
///   operations. Every other rank's share must be larger by more than a fifth of the time.
std::optional<SlowRank> find_slow_rank(const std::vector<RankView>& ranks);

/// Returns the share of time that the rank has spent in operations of the job's group. It counts
/// from the first operation in `record`. Returns nothing for less than 20 operations.
std::optional<double> share_in_operations(const FlightRecord& record);

}  // namespace lockstep::watch
