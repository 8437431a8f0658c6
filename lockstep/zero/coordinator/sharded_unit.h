// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/zero/coordinator/param_coordinator.h"

// The coordinator's record of a unit, and the messages of an exchange.
namespace lockstep::zero {

/// The condition that a rank waits for in an exchange, besides the values that it requests.
enum class ParamCoordinator::Until : int64_t {
  kValues,    ///< No further condition.
  kAllWrite,  ///< All ranks are about to write to the requested unit.
  kAllDone,   ///< All ranks have called wait_for_all.
  kGaveUp     ///< The rank gave up waiting for kAllWrite.
};

struct ParamCoordinator::Request {
  Index requested = kNone;
  Until until = Until::kValues;
  int64_t sync_point = 0;  ///< For kAllDone: the backward that it has finished, or kUpdate.
};

struct ParamCoordinator::Outcome {
  bool agreed;   ///< The request's condition holds.
  bool changed;  ///< Some rank got values, and continues.
};

/// One rank's message in an exchange.
struct ParamCoordinator::Message {
  int64_t requested;    ///< The unit that it waits for, or kNone.
  int64_t must_gather;  ///< 1: that unit must be gathered.
  int64_t expected;     ///< Its prediction of the next unit that is not live, or kNone.
  int64_t stale;        ///< 1: secondary shards became stale since the last exchange.
  int64_t exact;        ///< 1: it requests exact values.
  Until until;          ///< Its further condition; `sync_point`: see Request.
  int64_t sync_point;
  int64_t live;  ///< A hash of the units that it considers live.
  std::array<Index, kRecentUses> recent_uses;
};

struct ParamCoordinator::Unit final : AccessHandler {
  Unit(ParamCoordinator* owner, Index place, ShardedUnit* sharded_unit, std::string unit_name)
      : coordinator(owner), index(place), sharded(sharded_unit), name(std::move(unit_name)) {}
  void pin(bool writes) override { coordinator->pin(*this, writes); }
  void unpin(bool writes) noexcept override { coordinator->unpin(*this, writes); }
  int64_t elements() const { return sharded->buffer().numel(); }
  bool has_memory() const { return sharded->buffer().has_memory(); }
  /// Returns whether the buffer may differ from the ranks' shards.
  bool is_dirty() const { return has_memory() && (written || writers > 0); }

  ParamCoordinator* coordinator;
  Index index;
  ShardedUnit* sharded;
  std::string name;

  // The same on all ranks.
  bool live = false;
  bool prefetched = false;  ///< Prefetched, and no rank has waited for it yet.
  int64_t last_use = 0;     ///< `clock_` at its last use.
  bool exact = false;       ///< The last gather was exact.
  bool has_secondary = false;
  bool fresh = false;   ///< New, and never freed: ranks write to it during initialisation.
  int64_t writers = 0;  ///< Number of pins that write, once all ranks do.
  bool written = false;

  // Only of this rank.
  int64_t pins = 0;
  bool held_exact = false;  ///< One of the pins requires exact values.
  std::optional<Pending> pending = std::nullopt;
};

}  // namespace lockstep::zero
