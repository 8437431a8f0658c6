// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/zero/coordinator/buffer_pool.h"
#include "lockstep/zero/coordinator/sharded_unit.h"
#include "lockstep/zero/coordinator/unshard_protocol.h"

namespace lockstep::zero {

/// Stage 3: all-gathers parameters before an operation uses them.
///
/// - *Unsharded*: the unit's full values are in this rank's memory.
/// - *Pinned*: an operation of this rank uses the unit, so its memory stays.
/// - *Live*, *exchange*: see UnshardProtocol, which decides what all ranks gather and release. This
///   class carries the decisions out.
///
/// An operation that uses a sharded unit starts an exchange: every rank sends the unit that it
/// waits for, and all ranks all-gather all requested units. So ranks with different control flow do
/// not hang. A rank that has finished backward, or is about to update, calls wait_for_all(), which
/// serves the other ranks' requests until all ranks have called it.
///
/// Beyond `max_live_elements` the least recently used units are freed. A pinned unit keeps its
/// memory until the operation is done, live or not.
///
/// A unit that was written to (a loaded checkpoint, an initialisation) is written back to the
/// shards before it is freed. An operation that writes waits, in exchanges, until all ranks are
/// about to write to that unit; meanwhile other ranks get the units that they read. So each write
/// happens on all ranks, or on none, before the unit is freed. If no rank can continue because one
/// writes while others do not, all throw ConfigError. A rank may write alone to a unit that
/// with_gathered_parameters (class Gathered) holds for writing, or that is marked as written.
///
/// Exact and rounded all-gathers do not satisfy each other's requests. From its second all-gather
/// on, a unit with a secondary shard is gathered from the ranks of the hpZ group. An update or a
/// write to any unit drops all secondary shards, on all ranks in the same exchange.
///
/// Cost: an exchange for each unit, and one for each write. Thread safety: one thread at a time may
/// use units, including autograd's.
class ParamCoordinator {
 public:
  ParamCoordinator(Group group, const ParamCoordinatorOptions& options);
  ~ParamCoordinator();
  ParamCoordinator(const ParamCoordinator&) = delete;
  ParamCoordinator& operator=(const ParamCoordinator&) = delete;

  /// Manages the unit's tensors from now on. `name` is for errors. `sharded_unit` must outlive
  /// this. Call it in the same order on all ranks.
  void add(ShardedUnit& sharded_unit, std::string name);

  /// Marks the unit's values as new, to be written back. Every rank must write the same values
  /// until the unit is first freed or gathered again; such writes need no exchange. Call it on all
  /// ranks.
  void mark_written(const ShardedUnit& sharded_unit);
  /// Frees units so that `elements` more fit within the limit, if possible.
  void make_room_for(int64_t elements);

  /// Selects exact gathers for this rank's operations, or, if not `exact`, gathers in the
  /// communication dtype. Returns the previous setting.
  bool set_exact(bool exact);
  /// Drops all secondary shards, because the ranks' shards have changed or will change. Call it on
  /// all ranks, between exchanges.
  void drop_secondary_shards();

  /// Takes part in one exchange without a request of its own, to serve the other ranks. Collective
  /// with their operations.
  void serve();
  /// The `sync_point` of a rank that is about to update.
  static constexpr int64_t kUpdate = UnshardProtocol::kUpdate;
  /// Blocks until all ranks have called it; serves their requests meanwhile. `sync_point`: the
  /// number of the backward that this rank has finished, or kUpdate. Collective. Throws CommError,
  /// also if sync points differ, and ConfigError if another rank alone writes.
  void wait_for_all(int64_t sync_point = 0);
  /// Does the same over `group`, of the same transport, for instance with a longer timeout.
  void wait_for_all(int64_t sync_point, Group group);
  /// Writes changed units back to the ranks' shards.
  void write_back();
  /// Frees all units after writing changed ones back. Call it on all ranks, between exchanges.
  /// Throws ConfigError if a unit is held.
  void release_all();
  /// Resets the state after a failed operation.
  void abandon() noexcept;

  /// Elements with memory on this rank: unsharded, or being gathered.
  int64_t unsharded_elements() const { return unsharded_elements_; }
  int64_t max_unsharded_elements() const { return counters_.max_unsharded_elements; }
  /// Numbers of gathers since construction, and of those that were prefetches.
  int64_t gathers() const { return counters_.gathers; }
  int64_t prefetches() const { return counters_.prefetches; }
  /// The number of gathers from secondary shards.
  int64_t secondary_gathers() const { return counters_.secondary_gathers; }

 private:
  struct Unit;
  using Index = UnshardProtocol::Index;
  using Request = UnshardProtocol::Request;
  using Gather = UnshardProtocol::Gather;
  using Decision = UnshardProtocol::Decision;

  void pin(Unit& unit, bool writes);
  void unpin(Unit& unit, bool writes) noexcept;
  void await_all_to_write(Unit& unit);
  void unshard_exact();
  bool needs_exchange(const Unit& unit) const;
  /// Runs one exchange of the protocol and carries out its decision. Collective.
  Decision exchange(Group& group, Request request);
  void unshard(const Gather& gather);
  void start(Unit& unit, const Gather& gather);
  void wait_for_gather(Unit& unit);
  void write_back(Unit& unit);
  /// Ends the unit's live state; its memory is freed, unless it is in use.
  void reshard(Unit& unit);
  void reshard_all();
  void free_memory(Unit& unit);
  void free_for(int64_t elements, Index keep = UnshardProtocol::kNone);
  void drop_secondary();
  void add_unsharded(int64_t elements);

  Group group_;
  UnshardProtocol protocol_;
  std::vector<std::unique_ptr<Unit>> units_;
  BufferPool buffer_pool_;
  std::mutex mutex_;
  int64_t unsharded_elements_ = 0;
  struct Counters {
    int64_t max_unsharded_elements = 0;
    int64_t gathers = 0;
    int64_t prefetches = 0;
    int64_t secondary_gathers = 0;
  };
  Counters counters_;
};

/// RAII scope: this rank's operations use exact gathers. Scopes may be nested.
class ExactValues {
 public:
  /// `coordinator`: may be null.
  explicit ExactValues(ParamCoordinator* coordinator)
      : coordinator_(coordinator),
        was_exact_(coordinator != nullptr && coordinator->set_exact(true)) {}
  ~ExactValues() {
    if (coordinator_ != nullptr) {
      coordinator_->set_exact(was_exact_);
    }
  }
  ExactValues(const ExactValues&) = delete;
  ExactValues& operator=(const ExactValues&) = delete;

 private:
  ParamCoordinator* coordinator_;
  bool was_exact_;
};

}  // namespace lockstep::zero
