// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/accelerator/loop/epoch_range.h"
#include "lockstep/data/order/cursor.h"

namespace lockstep::internal {

/// Counts the iterations of a program's epochs() ranges, which a resumed program does not repeat.
///
/// A range is identified by its place: the number of ranges that began before it within the same
/// iteration of the range around it. A resumed program calls epochs() in the same order. A range
/// before the saved place is empty, the range at that place continues, and later ones are complete.
///
/// Cost: a copy of each loader's position an iteration.
class EpochCounter : public std::enable_shared_from_this<EpochCounter> {
 public:
  /// The work of the program so far, to tell whether an iteration has trained.
  struct Work {
    int64_t backward_passes = 0;
    int64_t updates = 0;
    std::vector<data::Cursor> positions = {};  ///< Of each loader, as a save would store it.
  };
  /// The ranges of one nesting level, within the current iteration of the level around it.
  struct Level {
    int64_t ranges = 0;  ///< Ranges that have begun.
    int64_t done = 0;    ///< Complete iterations of the last one.

    bool operator==(const Level&) const = default;
  };
  using Place = std::vector<Level>;

  explicit EpochCounter(std::function<Work()> work) : work_(std::move(work)) {}

  /// Returns the next range of the program, of `count` iterations without those that a resume has
  /// done. It counts its iterations here.
  EpochRange range(int64_t count);
  /// Returns the place to save. The running iteration counts as done if it has trained and no
  /// loader is within a pass that the iteration has begun.
  Place place() const;
  /// Continues at a saved place: the ranges that begin from now on are compared with it.
  void resume(Place place) { resumed_ = std::move(place); }

 private:
  class CountedRange;
  struct Position {
    int64_t first = 0;
    bool is_done = false;
  };

  Position next_range() const;
  void begin_iteration(size_t level, int64_t done);
  void end_range(size_t level, bool is_complete);
  bool iteration_has_trained() const;

  std::function<Work()> work_;
  Place levels_;
  size_t depth_ = 0;  ///< Number of running ranges.
  Place resumed_;
  std::optional<Work> at_begin_;  ///< Of the running or last iteration; empty once it is counted.
};

}  // namespace lockstep::internal
