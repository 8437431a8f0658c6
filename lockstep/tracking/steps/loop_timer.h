// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::tracking {

/// A part of the time of a training loop, as its thread sees it.
enum class LoopPart : uint8_t {
  kData,           ///< Waits for the loader's next batch.
  kForward,        ///< Forward, and all of the loop's body that is nothing else.
  kBackward,       ///< Backward, without the waits for other ranks.
  kCommunication,  ///< Starts operations of a group, and waits for them.
  kOptimizer,      ///< Clips gradients and updates parameters.
  kCheckpoint,     ///< Saves or loads; for an asynchronous save only the time that it blocks.
  kOther           ///< Evaluation, the start of the program, and the time between epochs.
};
inline constexpr size_t kLoopParts = 7;

/// Returns "data", "forward", "backward", "communication", "optimizer", "checkpoint" or "other".
const char* name_of(LoopPart part);

/// Nanoseconds of each part, indexed by LoopPart.
using PartTimes = std::array<int64_t, kLoopParts>;

int64_t total_ns(const PartTimes& times);
void add_times(PartTimes& times, const PartTimes& more);

/// Divides the time of a thread into parts. Every moment belongs to exactly one part: the innermost
/// one that was entered, or the base. Cost: a few ns a call, no allocation.
///
/// `now_ns` is the time of the call on any steady clock.
class LoopTimer {
 public:
  LoopTimer(LoopPart base, int64_t now_ns);

  void set_base(LoopPart base, int64_t now_ns);
  void enter(LoopPart part, int64_t now_ns);
  /// Leaves the part entered last. Does nothing without one.
  void leave(int64_t now_ns);
  /// Returns the times since the last take().
  const PartTimes& read(int64_t now_ns);
  /// Does the same, and restarts at 0.
  PartTimes take(int64_t now_ns);
  /// Counts all time since read() returned `before` as kOther.
  void count_as_other_since(const PartTimes& before, int64_t now_ns);

 private:
  void account(int64_t now_ns);

  std::vector<LoopPart> entered_;  ///< The base, and the parts entered, innermost last.
  int64_t accounted_ns_;
  PartTimes times_{};
};

}  // namespace lockstep::tracking
