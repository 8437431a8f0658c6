// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/zero/coordinator/param_coordinator.h"

// What a Pager knows of its units, and what ranks say to each other of them.
namespace lockstep::zero {

/// What a rank waits for in a round, besides the values that it wants.
enum class ParamCoordinator::Until : int64_t {
  kValues,      ///< Nothing.
  kAllWrite,    ///< That all ranks are about to write to what it wants.
  kAllThrough,  ///< That all are through.
  kNoLonger     ///< It did for kAllWrite, in vain.
};

struct ParamCoordinator::Request {
  Index wanted = kNone;
  Until until = Until::kValues;
  int64_t mark = 0;  ///< Of kAllThrough: what it is through with.
};

struct ParamCoordinator::Outcome {
  bool agreed;   ///< What it waited for is so.
  bool changed;  ///< Some rank got values, and goes on.
};

/// What a rank says in a round.
struct ParamCoordinator::Message {
  int64_t wanted;     ///< The unit that it waits for, or kNone.
  int64_t must_come;  ///< Whether that has to be brought.
  int64_t expected;   ///< What it will want next and is not live, or kNone.
  int64_t stale;      ///< Whether second copies are, since the last round.
  int64_t exact;      ///< Whether it wants values to the bit.
  Until until;        ///< What it waits for besides, and with what it is through.
  int64_t mark;
  int64_t live;  ///< Which units it takes to be live.
  std::array<Index, kTouches> touches;
};

struct ParamCoordinator::Unit final : AccessHandler {
  Unit(ParamCoordinator* owner, Index place, ShardedUnit* pageable, std::string said)
      : coordinator(owner), index(place), what(pageable), name(std::move(said)) {}
  void pin(bool writes) override { coordinator->pin(*this, writes); }
  void unpin(bool writes) noexcept override { coordinator->unpin(*this, writes); }
  int64_t elements() const { return what->buffer().numel(); }
  bool has_memory() const { return what->buffer().has_memory(); }
  /// Whether what is here may differ from the ranks' own parts.
  bool is_dirty() const { return has_memory() && (written || writers > 0); }

  ParamCoordinator* coordinator;
  Index index;
  ShardedUnit* what;
  std::string name;

  // The same on all ranks.
  bool live = false;
  bool prefetched = false;  ///< And no rank has waited for it yet.
  int64_t touched = 0;
  bool exact = false;  ///< What came last is what the shards are, to the bit.
  bool has_secondary = false;
  bool fresh = false;   ///< Just made, and never gone: ranks write to it as they build.
  int64_t writers = 0;  ///< Those of the pins that write, once all ranks do.
  bool written = false;

  // Of this rank.
  int64_t pins = 0;
  bool held_exact = false;  ///< By one of the pins.
  std::optional<Pending> pending = std::nullopt;
};

}  // namespace lockstep::zero
