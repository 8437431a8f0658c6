// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/sync/join.h"

namespace lockstep {

/// Who still has data: one small all-reduce before every averaging, which ranks with data start and
/// ranks without answer.
///
/// Thread safety: none.
class JoinCoordinator {
 public:
  struct ActiveRanks {
    std::vector<int> alive;  ///< Ranks that still have data, ascending.
    size_t model = 0;        ///< Which model they are about to average.
    bool kept = false;       ///< Whether they add to an average they have not zeroed since.
  };

  JoinCoordinator(Group group, size_t models, JoinOptions options);

  /// Says that this rank is about to average `model`. Throws ConfigError at once if some rank has
  /// run out of data and the options ask for that; else `wait` tells.
  void announce(size_t model, bool kept);
  /// What ranks with data are about to do, for one without; nobody alive: all are done. Throws
  /// ConfigError as above.
  const ActiveRanks& answer();
  /// The roll of the last announcement.
  const ActiveRanks& wait();

  /// What turns an average over all ranks into the one asked for.
  double factor() const;
  /// The rank whose parameters and buffers are the latest: of those alive last, the first.
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
