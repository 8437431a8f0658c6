// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>

namespace lockstep::zero {

/// Which unit comes next, by what came after the same three the last time, forward and backward
/// apart. Ranks that learn the same foretell the same. Thread safety: none.
class PrefetchTrace {
 public:
  using Index = int64_t;
  static constexpr Index kNone = -1;

  /// What is to come after `index`, which comes now; kNone if that is not known.
  Index after(Index index) const;
  /// `next` has come.
  void learn(Index next);
  /// Nothing follows what came last; what comes from now on begins anew.
  void end();
  /// What comes from now on begins anew.
  void restart() { history_ = kBeginning; }
  void forget();

 private:
  using History = std::array<Index, 4>;  ///< The last three, and whether in backward.
  static constexpr History kBeginning{kNone, kNone, kNone, 0};

  History followed_by(Index next) const;

  History history_ = kBeginning;
  std::map<History, Index> next_;
};

}  // namespace lockstep::zero
