// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/sync/join.h"

namespace lockstep {

/// Tracks which ranks still have data: one small all-reduce before every averaging, which ranks
/// with data start and ranks without answer.
///
/// Not thread-safe.
class JoinCoordinator {
 public:
  struct ActiveRanks {
    std::vector<int> alive;  ///< Ranks that still have data, ascending.
    size_t model = 0;        ///< The model that they are about to average.
    bool kept = false;       ///< Whether they add to an average that was not zeroed.
  };

  JoinCoordinator(Group group, size_t models, JoinOptions options);

  /// Announces that this rank is about to average `model`. Throws ConfigError at once if some rank
  /// has run out of data and the options require it; else `wait` reports it.
  void announce(size_t model, bool kept);
  /// For a rank without data: returns the next action of ranks with data; none alive: all are done.
  /// Throws ConfigError as above.
  const ActiveRanks& answer();
  /// The result of the last announcement.
  const ActiveRanks& wait();

  /// The factor from an average over all ranks to the requested one.
  double factor() const;
  /// The rank with the latest parameters and buffers: the first of those alive last.
  int latest_rank() const { return latest_rank_; }

 private:
  void start(bool alive, size_t model, bool kept);
  void refuse_early_end(bool here) const;

  Group group_;
  size_t models_;
  JoinOptions options_;
  std::optional<Pending> pending_;
  ActiveRanks counts_;
  int latest_rank_ = 0;
};

}  // namespace lockstep
