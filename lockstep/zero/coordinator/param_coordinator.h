// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/zero/coordinator/buffer_pool.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"
#include "lockstep/zero/coordinator/prefetch_trace.h"

/// Stage 3: all-gathers parameters before an operation uses them.
///
/// - *Unsharded*: the unit's full values are in this rank's memory.
/// - *Live*: all ranks consider the unit unsharded. Only exchanges change it, so all ranks agree.
/// - *Pinned*: an operation of this rank uses the unit, so its memory stays.
/// - *Exchange*: an all-gather of one small message per rank, after which all ranks all-gather the
///   units that any of them requested.
namespace lockstep::zero {

/// The source of the values of an all-gather.
enum class Source {
  kShards,    ///< The shards of all ranks, in the communication dtype, possibly rounded.
  kExact,     ///< The shards of all ranks, bit-exact.
  kSecondary  ///< The secondary shards of the ranks of the hpZ group: the last kShards' values.
};

/// A unit of sharded parameters that the coordinator all-gathers before use and frees afterwards.
class ShardedUnit {
 public:
  ShardedUnit() = default;
  virtual ~ShardedUnit() = default;
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  virtual FlatParamBuffer& buffer() = 0;
  /// Starts the all-gather into the buffer, which has memory. Collective; kSecondary only among the
  /// ranks of the hpZ group (zero_hpz_partition_size ranks).
  virtual Pending start_gather(Source source) = 0;
  /// Completes the all-gather with its result `received`: the buffer's values are valid afterwards.
  /// Local.
  virtual void finish_gather(const at::Tensor& /*received*/) {}
  /// Returns whether kShards gives other values than kExact.
  virtual bool comm_is_rounded() const { return false; }
  /// Returns whether kSecondary is possible after kShards, until `drop_secondary`.
  virtual bool keeps_secondary() const { return false; }
  virtual void drop_secondary() {}
  /// Copies this rank's shard from the buffer to its storage.
  virtual void write_back() = 0;
};

struct ParamCoordinatorOptions {
  /// The limit of live elements at a time; one operation may exceed it. None: as many as the three
  /// largest units have, so that one can be prefetched while another is in use.
  std::optional<int64_t> max_live_elements = std::nullopt;
  /// Prefetches the unit that followed this one the last time it was used.
  bool prefetch = true;
};

/// Decides which units are live, equally on all ranks.
///
/// An operation that uses a sharded unit starts an exchange: every rank sends the unit that it
/// waits for, and all ranks all-gather all requested units. So ranks with different control flow do
/// not hang. A rank that has finished backward, or is about to update, calls wait_for_all(), which
/// serves the other ranks' requests until all ranks have called it. If all ranks wait for the same
/// unit and expect the same next one, they prefetch that one.
///
/// Beyond `max_live_elements` the least recently used units are freed. A pinned unit keeps its
/// memory until the operation is done, live or not. Each exchange compares the ranks' sets of live
/// units; if they differ, for instance after an error, all units are freed.
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
/// Cost: an all-gather of 96 bytes per rank for each unit, and one for each write. Thread safety:
/// one thread at a time may use units, including autograd's.
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
  static constexpr int64_t kUpdate = -1;
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
  struct Message;
  using Index = PrefetchTrace::Index;
  static constexpr Index kNone = PrefetchTrace::kNone;
  static constexpr size_t kRecentUses = 4;

  enum class Until : int64_t;
  struct Request;
  struct Outcome;

  void pin(Unit& unit, bool writes);
  void unpin(Unit& unit, bool writes) noexcept;
  void await_all_to_write(Unit& unit);
  void unshard_exact();
  void record_use(Index index);
  bool has_wrong_values(const Unit& unit) const;
  bool needs_exchange(const Unit& unit) const;
  bool must_gather(const Unit& unit) const;
  Outcome exchange(Group& group, const Request& request);
  std::vector<Message> exchange_messages(Group& group, const Request& request);
  void prefetch_after(Index requested, const std::vector<Message>& messages);
  /// Throws CommError if ranks in wait_for_all have different sync points.
  static void check_same_sync_point(const std::vector<Message>& messages);
  /// Throws ConfigError if no rank can continue because one writes to a unit and others do not.
  void check_writes(const std::vector<Message>& messages) const;
  void apply_messages(const std::vector<Message>& messages);
  /// Gathers a unit on all ranks, whether or not they have its memory.
  void unshard(Index index, bool exact);
  void start(Unit& unit, bool exact);
  void wait_for_gather(Unit& unit);
  void write_back(Unit& unit);
  /// Ends the unit's live state; its memory is freed, unless it is in use.
  void reshard(Unit& unit);
  void free_memory(Unit& unit);
  void reshard_all();
  int64_t live_hash() const;
  void free_for(int64_t elements, Index keep);
  int64_t element_limit() const;

  Group group_;
  ParamCoordinatorOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;
  BufferPool buffer_pool_;
  std::mutex mutex_;
  bool exact_ = false;
  bool stale_ = false;  ///< Secondary shards are stale; the next exchange reports it.

  PrefetchTrace trace_;
  std::vector<Index> recent_uses_;  ///< The last units that this rank used since the last exchange.
  int64_t clock_ = 0;               ///< Counts exchanges: the same on all ranks.
  int64_t live_elements_ = 0;       ///< Elements of live units: the same on all ranks.
  int64_t unsharded_elements_ = 0;
  int64_t three_largest_ = 0;
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
