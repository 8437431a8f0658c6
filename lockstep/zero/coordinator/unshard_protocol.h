// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/zero/coordinator/prefetch_trace.h"
#include "lockstep/zero/coordinator/sharded_unit.h"

namespace lockstep::zero {

struct ParamCoordinatorOptions {
  /// The limit of live elements at a time; one operation may exceed it. None: as many as the three
  /// largest units have, so that one can be prefetched while another is in use.
  std::optional<int64_t> max_live_elements = std::nullopt;
  /// Prefetches the unit that followed this one the last time it was used.
  bool prefetch = true;
};

/// Decides which units all ranks gather and release, equally on all ranks.
///
/// - *Live*: all ranks consider the unit unsharded.
/// - *Exchange*: an all-gather of one small message per rank, from which all ranks derive the same
///   decision.
///
/// A message has this rank's request and its reports: units used since the last exchange, stale
/// secondary shards, a hash of the live units. Every requested unit that is not live, or that some
/// rank lacks, is gathered. If all ranks request the same unit and expect the same next one, they
/// prefetch that one.
///
/// The protocol touches no parameter memory. The caller carries out each decision, and calls
/// `mark_live` and `mark_released` as it does. Ranks whose calls differ, for instance after an
/// error, have different hashes; the next exchange then decides to release all units.
///
/// Cost: 96 bytes per rank and exchange. Not thread-safe.
class UnshardProtocol {
 public:
  /// The index of a unit, by the order of `add`.
  using Index = PrefetchTrace::Index;
  static constexpr Index kNone = PrefetchTrace::kNone;
  /// The `sync_point` of a rank that is about to update.
  static constexpr int64_t kUpdate = -1;

  /// The condition that a rank waits for, besides the values that it requests.
  enum class Until : int64_t {
    kValues,    ///< No further condition.
    kAllWrite,  ///< All ranks are about to write to the requested unit.
    kAllDone,   ///< All ranks have called ParamCoordinator::wait_for_all.
    kGaveUp     ///< The rank gave up waiting for kAllWrite.
  };

  struct Request {
    Index unit = kNone;  ///< The unit that this rank waits for; kNone: it only serves others.
    Until until = Until::kValues;
    int64_t sync_point = 0;   ///< For kAllDone: the backward that it has finished, or kUpdate.
    bool has_memory = false;  ///< This rank has the unit's memory.
  };

  /// A unit to gather on all ranks, whether or not they have its memory.
  struct Gather {
    Index unit;
    Source source;
    Index follows = kNone;  ///< For a prefetch: the unit after which it is expected.

    bool is_prefetch() const { return follows != kNone; }
  };

  /// The actions of all ranks after an exchange, in the order of the members.
  struct Decision {
    /// The ranks' live units differed. The protocol has marked all units released.
    bool release_all = false;
    bool drop_secondary = false;  ///< All secondary shards are stale.
    std::vector<Gather> gathers;
    /// ConfigError or CommError, to be thrown after the actions; null if none.
    std::exception_ptr error;

    bool agreed = false;   ///< The condition of the request holds; false for kValues.
    bool changed = false;  ///< Some rank's request is met by `gathers`.
  };

  explicit UnshardProtocol(const ParamCoordinatorOptions& options) : options_(options) {}

  /// The properties of a unit that never change, equal on all ranks.
  struct UnitTraits {
    std::string name;  ///< For errors.
    int64_t elements;
    bool comm_is_rounded;  ///< See ShardedUnit::comm_is_rounded.
    bool keeps_secondary;  ///< See ShardedUnit::keeps_secondary.
  };
  /// Adds a unit; its index is the number of earlier ones.
  void add(UnitTraits traits, bool is_live);
  const std::string& name(Index unit) const { return units_[unit].traits.name; }

  /// Reports in the next exchange that an operation of this rank uses the unit.
  void report_use(Index unit);
  /// Reports in the next exchange that secondary shards are stale.
  void report_stale() { stale_ = true; }
  /// Selects exact values for this rank's requests, or, if not `exact`, values in the communication
  /// dtype. Returns the previous setting.
  bool set_exact(bool exact);
  bool is_exact() const { return exact_; }

  /// Exchanges messages and returns the decision. Collective. Throws CommError.
  Decision exchange(Group& group, const Request& request);
  /// Returns the unit to release before `elements` more are live: the least recently used one, but
  /// not `keep`. None if they fit, or no unit is left.
  std::optional<Index> unit_to_release(int64_t elements, Index keep = kNone) const;
  /// Must be called when the gather has started.
  void mark_live(const Gather& gather);
  /// Must be called before the unit's memory is freed.
  void mark_released(Index unit);
  /// Resets the prediction of the next unit after a failed operation, and reports secondary shards
  /// stale.
  void abandon();

  bool is_live(Index unit) const { return units_[unit].live; }
  /// Returns whether the unit was prefetched and no rank has waited for it yet.
  bool is_prefetched(Index unit) const { return units_[unit].prefetched; }
  /// Returns whether the values are rounded and this rank needs exact ones, or the reverse:
  /// training must not continue with the exact values of with_gathered_parameters.
  bool has_wrong_values(Index unit) const {
    return units_[unit].exact != exact_ && units_[unit].traits.comm_is_rounded;
  }

 private:
  static constexpr size_t kRecentUses = 4;
  struct Message;
  using Messages = std::vector<Message>;

  /// The state of a unit: the same on all ranks.
  struct Unit {
    UnitTraits traits;
    bool live = false;
    bool prefetched = false;
    int64_t last_use = 0;  ///< `clock_` at its last use.
    bool exact = false;    ///< The last gather was exact.
    bool has_secondary = false;
  };

  Message message_of(const Request& request) const;
  Decision decide(const Messages& messages);
  void apply_reports(const Messages& messages, Decision& decision);
  /// Adds the requested units to the decision. Returns whether any was prefetched.
  bool add_requested(const Messages& messages, Decision& decision);
  void add_prefetch(const Messages& messages, Decision& decision);
  Source source_of(Index unit, bool exact) const;
  static std::exception_ptr find_sync_error(const Messages& messages);
  std::exception_ptr find_write_error(const Messages& messages) const;
  int64_t live_hash() const;
  int64_t element_limit() const { return options_.max_live_elements.value_or(three_largest_); }

  ParamCoordinatorOptions options_;
  std::vector<Unit> units_;
  PrefetchTrace trace_;
  int64_t clock_ = 0;          ///< Counts uses and gathers: the same on all ranks.
  int64_t live_elements_ = 0;  ///< Elements of live units: the same on all ranks.
  int64_t three_largest_ = 0;  ///< Elements of the three largest units.

  // Only of this rank.
  bool exact_ = false;
  bool stale_ = false;              ///< Secondary shards are stale.
  std::vector<Index> recent_uses_;  ///< The last units that it used since the last exchange.
};

}  // namespace lockstep::zero
