// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/pipeline_schedule/pipeline_schedule.h"

namespace lockstep::pipeline_schedule {

/// The times of one micro-batch in a chunk, in any unit that all of them share.
struct ChunkTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;  ///< kBackward takes backward_input + backward_weight.
};

struct SimulationTimes {
  std::vector<ChunkTimes> chunks = {{}};  ///< One for all chunks, or one for each.
  double message = 0;  ///< From the end of a computation to the use of its result by another rank.
};

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

/// The result of a simulation.
struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;  ///< [rank][step], as the simulated lists.
  double total = 0;                             ///< The end of the last action.
  double work = 0;                              ///< The sum of all computations, over all ranks.
  /// The most micro-batches of each rank, counted for each chunk, whose forward has begun and whose
  /// kBackward or kBackwardWeight has not ended. A chunk has 1/v of a rank's layers if each rank
  /// has v chunks, and so have its activations.
  std::vector<int> peak_activations;

  /// Returns the idle part of the ranks' time, from 0 to 1; 0 for empty lists.
  double bubble() const;
  /// Returns the idle time as a ratio to `work`: (p - 1) / m for 1F1B; 0 for empty lists.
  double bubble_per_work() const;
};

/// Computes when each action of each rank begins and ends.
///
/// Every action begins as early as its inputs and its rank permit. Without message actions in
/// `lists`, a result reaches another rank `times.message` after it was computed. With message
/// actions (see add_messages), a send takes no time, and a receive blocks its rank until
/// `times.message` after the send. Chunk c must be on rank c % lists.size().
///
/// Throws ConfigError if the ranks would wait for each other forever, naming what each waits for;
/// if a receive meets another message of its sender first; for an action of another rank's chunk;
/// and if `times` are negative, not finite, or not one for each chunk.
///
/// Cost: linear in the number of actions, up to a factor for the number of ranks.
Timeline simulate(const ActionLists& lists, const SimulationTimes& times = {});

}  // namespace lockstep::pipeline_schedule
