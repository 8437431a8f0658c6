// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>

namespace lockstep::zero {

/// Predicts the unit that followed the same three units the last time, separately for forward and
/// backward. Ranks with the same trace predict the same. Not thread-safe.
class PrefetchTrace {
 public:
  using Index = int64_t;
  static constexpr Index kNone = -1;

  /// Returns the unit expected after `index`, the current one; kNone if unknown.
  Index after(Index index) const;
  /// Records that `next` is used.
  void record(Index next);
  /// Ends the sequence: no unit follows the last one, and a new sequence starts.
  void end();
  /// Starts a new sequence.
  void restart() { history_ = kBeginning; }
  void forget();

 private:
  using History = std::array<Index, 4>;  ///< The last three units, and whether in backward.
  static constexpr History kBeginning{kNone, kNone, kNone, 0};

  History followed_by(Index next) const;

  History history_ = kBeginning;
  std::map<History, Index> next_;
};

}  // namespace lockstep::zero
