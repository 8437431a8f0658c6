// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/sync/join.h"

namespace lockstep {

/// Tracks the ranks that still have data, by one small all-reduce before every averaging. Ranks
/// with data start it, and ranks without data answer.
///
class JoinCoordinator {
 public:
  struct ActiveRanks {
    std::vector<int> alive;  ///< Ranks that still have data, ascending.
    size_t model = 0;        ///< The model that they are about to average.
    bool kept = false;       ///< They add to an average that was not zeroed.
  };

  JoinCoordinator(Group group, size_t models, JoinOptions options);

  /// Announces that this rank is about to average `model`. Throws ConfigError at once if some rank
  /// has run out of data and the options require it; else `wait` reports it.
  void announce(size_t model, bool kept);
  /// Returns the next averaging of ranks with data, for a rank without data. No rank alive: all are
  /// done. Throws ConfigError as above.
  const ActiveRanks& answer();
  /// Returns the result of the last announcement.
  const ActiveRanks& wait();

  /// Returns the factor from an average over all ranks to the requested average.
  double factor() const;
  /// Returns the rank with the latest parameters and buffers: the first of those alive last.
  int latest_rank() const { return latest_rank_; }

 private:
  void start(bool alive, size_t model, bool kept);
  void refuse_early_end(bool this_rank) const;

  Group group_;
  size_t models_;
  JoinOptions options_;
  std::optional<Pending> pending_;
  ActiveRanks counts_;
  int latest_rank_ = 0;
};

}  // namespace lockstep
