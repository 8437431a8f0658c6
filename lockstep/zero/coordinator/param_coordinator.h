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

namespace lockstep::zero {

/// Where the values of a unit come from.
enum class Source {
  kShards,    ///< From all ranks, as parameters travel: rounded maybe.
  kExact,     ///< From all ranks, to the bit.
  kSecondary  ///< From close ranks, what the last kShards gave.
};

/// What a Pager brings together from all ranks, and lets go of again.
class ShardedUnit {
 public:
  ShardedUnit() = default;
  virtual ~ShardedUnit() = default;
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  virtual FlatParamBuffer& buffer() = 0;
  /// Starts to fill the buffer, which has memory. Collective; of kSecondary among close ranks.
  virtual Pending start_gather(Source source) = 0;
  /// `came`: what that has given. The values are there when it returns. Local.
  virtual void finish_gather(const at::Tensor& /*came*/) {}
  /// Whether kShards gives other values than kExact.
  virtual bool comm_is_rounded() const { return false; }
  /// Whether kSecondary is possible after kShards, until `drop_secondary`.
  virtual bool keeps_secondary() const { return false; }
  virtual void drop_secondary() {}
  /// This rank's part of what stands in the buffer becomes what it has to keep.
  virtual void write_back() = 0;
};

struct ParamCoordinatorOptions {
  /// Most elements that are whole at a time, unless one operation wants more. None: as many as the
  /// three largest units, so that the next can come while one is in use.
  std::optional<int64_t> max_live_elements = std::nullopt;
  /// Whether the unit that came next the last time is on its way already.
  bool prefetch = true;
};

/// Decides which units' values are whole, on all ranks alike.
///
/// An operation that touches a unit which is not here holds a round: every rank says which unit it
/// is waiting for, and all that anybody waits for are brought, on all ranks. So ranks whose control
/// flow differs do not hang: who is done with backward, or about to update (`settle`), goes on
/// taking part until all are. Where all wait for the same one, the unit that followed the last time
/// is started along with it, if all expect the same.
///
/// Which units are *live* follows from what was exchanged in rounds alone, and is the same on all
/// ranks. When more than `max_live_elements` would be, what no rank has touched for the longest
/// time goes. What an operation of this rank is using (`pins`) keeps its memory till it is done,
/// live or not. Each round compares what ranks take to be live; where one has lost count, after an
/// error say, all let go of everything and go on from there.
///
/// A unit that was written to (a loaded checkpoint, an initialisation) is written back before it
/// goes. An operation that writes waits, in rounds, until all ranks are about to write to that
/// unit, and others get what they read meanwhile: so each write is done on all ranks, or on none,
/// when a unit goes. Where no rank can go on, as one writes alone, all get a ConfigError. What is
/// held by a Gathered for writing, and what is marked as written, a rank may write to alone.
///
/// Values that came to the bit do not serve an operation that is to have them rounded, nor the
/// other way round. A unit that keeps a second copy among close ranks comes from there from its
/// second gather on, until any rank says that values have changed: an update, or a write to any
/// unit, drops all second copies, on all ranks in the same round.
///
/// Cost: an all-gather of 96 bytes a rank and unit, besides the unit, and one a write. Thread
/// safety: units may be touched from any one thread at a time, autograd's included.
class ParamCoordinator {
 public:
  ParamCoordinator(Group group, const ParamCoordinatorOptions& options);
  ~ParamCoordinator();
  ParamCoordinator(const ParamCoordinator&) = delete;
  ParamCoordinator& operator=(const ParamCoordinator&) = delete;

  /// From now on its tensors are looked after. `name` is said in errors. Call in the same order on
  /// all ranks. `pageable` must outlive this.
  void add(ShardedUnit& pageable, std::string name);

  /// Its values are new: they have to be written back. Until it goes the first time all ranks write
  /// the same to it, or what they write is replaced. On all ranks.
  void mark_written(const ShardedUnit& pageable);
  /// So that with `elements` more there are no more than there may be, if that is possible.
  void make_room_for(int64_t elements);

  /// From now on what this rank touches comes to the bit, however parameters travel else, or, if
  /// not `exact`, as they travel. Returns what it was.
  bool set_exact(bool exact);
  /// The ranks' own parts have changed, or will. To be called on all ranks, between rounds.
  void drop_secondary_shards();

  /// Brings what others wait for, once. For a rank that waits for something else that they have to
  /// do. Collective, with what they touch.
  void serve();
  /// A mark: this rank is about to update.
  static constexpr int64_t kUpdate = -1;
  /// This rank is through: returns when all are. `mark`: what they are through with, the number of
  /// a backward or kUpdate; CommError if that differs. Collective. Throws CommError, and
  /// ConfigError where another rank writes alone.
  void wait_for_all(int64_t mark = 0);
  /// Over a Group of the same transport, with more patience say.
  void wait_for_all(int64_t mark, Group over);
  /// What was written to units goes to the ranks' own parts.
  void write_back();
  /// All values go; what was written first goes to the ranks' own parts. To be called on all ranks,
  /// between rounds. ConfigError if something is held.
  void release_all();
  /// After an operation failed: forgets what was under way.
  void abandon() noexcept;

  /// Elements that have memory here: whole, or on their way.
  int64_t live_elements() const { return unsharded_elements_; }
  int64_t max_live_elements_seen() const { return max_unsharded_elements_; }
  /// Gathers since construction, and how many of them were started before they were needed.
  int64_t gathers() const { return gathers_; }
  int64_t prefetches() const { return prefetches_; }
  /// How many of them stayed among close ranks.
  int64_t secondary_gathers() const { return secondary_gathers_; }

 private:
  struct Unit;
  struct Message;
  using Index = PrefetchTrace::Index;
  static constexpr Index kNone = PrefetchTrace::kNone;
  static constexpr size_t kTouches = 4;

  enum class Until : int64_t;
  struct Request;
  struct Outcome;

  void pin(Unit& unit, bool writes);
  void unpin(Unit& unit, bool writes) noexcept;
  void await_all_to_write(Unit& unit);
  void unshard_exact();
  void note_touch(Index index);
  bool has_wrong_values(const Unit& unit) const;
  bool needs_round(const Unit& unit) const;
  bool must_come(const Unit& unit) const;
  Outcome round(Group& over, const Request& call);
  void check_agreement(const std::vector<Message>& each, bool agreed) const;
  void take_notice(const std::vector<Message>& messages);
  void bring(Index index, bool exact);
  void start(Unit& unit, bool exact);
  void arrive(Unit& unit);
  void write_back(Unit& unit);
  /// No longer live; its memory goes, unless it is in use.
  void evict(Unit& unit);
  void let_go(Unit& unit);
  void reshard_all();
  int64_t live_hash() const;
  void make_room(int64_t elements, Index keep);
  int64_t most() const;

  Group group_;
  ParamCoordinatorOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;
  BufferPool buffer_pool_;
  std::mutex mutex_;
  bool exact_ = false;
  bool stale_ = false;  ///< Second copies, as this rank will say in the next round.

  PrefetchTrace trace_;
  std::vector<Index> touches_;  ///< The last units that this rank touched since the last round.
  int64_t clock_ = 0;           ///< Counts what was exchanged: the same on all ranks.
  int64_t live_elements_ = 0;   ///< Of live units: the same on all ranks.
  int64_t unsharded_elements_ = 0;
  int64_t max_unsharded_elements_ = 0;
  int64_t three_largest_ = 0;
  int64_t gathers_ = 0;
  int64_t prefetches_ = 0;
  int64_t secondary_gathers_ = 0;
};

/// While it lives, what this rank touches comes to the bit. May be within another.
class ExactValues {
 public:
  /// `pager`: may be null.
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
