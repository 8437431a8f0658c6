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
  double waiting = 0;  ///< Part of the time that at least one other has spent waiting for it alone.
  std::string what;    ///< For people.
};

/// The rank that came last, and alone, to nearly all of the latest operations of all ranks, if that
/// cost the others more than a fifth of the time. For ranks of one host, whose clock is one. Judges
/// by no fewer than 20 operations.
std::optional<SlowRank> find_slow_rank(const std::vector<RankView>& ranks);

}  // namespace lockstep::watch
