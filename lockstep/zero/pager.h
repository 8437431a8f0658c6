// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/zero/paged_buffer.h"

namespace lockstep::zero {

/// Where the values of a unit come from.
enum class Source {
  kShards,    ///< From all ranks, as parameters travel: rounded maybe.
  kExact,     ///< From all ranks, to the bit.
  kSecondary  ///< From close ranks, what the last kShards gave.
};

/// What a Pager brings together from all ranks, and lets go of again.
class Pageable {
 public:
  Pageable() = default;
  virtual ~Pageable() = default;
  Pageable(const Pageable&) = delete;
  Pageable& operator=(const Pageable&) = delete;

  virtual PagedBuffer& buffer() = 0;
  /// Starts to fill the buffer, which has memory. Collective; of kSecondary among close ranks.
  virtual Pending start_gather(Source source) = 0;
  /// `came`: what that has given. The values are there when it returns. Local.
  virtual void finish_gather(const at::Tensor& /*came*/) {}
  /// Whether kShards gives other values than kExact.
  virtual bool travels_rounded() const { return false; }
  /// Whether kSecondary is possible after kShards, until `drop_secondary`.
  virtual bool keeps_secondary() const { return false; }
  virtual void drop_secondary() {}
  /// This rank's part of what stands in the buffer becomes what it has to keep.
  virtual void write_back() = 0;
};

struct PagerOptions {
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
/// flow differs do not hang: who is done with backward (`settle`) goes on taking part until all
/// are. Where all wait for the same one, the unit that followed the last time is started along with
/// it, if all expect the same. The decisions follow from what was exchanged alone.
///
/// A unit that keeps a second copy among close ranks comes from there from its second gather on,
/// until any rank says that values have changed: an update, or a write to any unit, drops all
/// second copies, on all ranks in the same round.
///
/// What was not touched for the longest time goes first when more than `max_live_elements` would be
/// whole. A unit that was written to (a loaded checkpoint, an initialisation) is written back
/// before it goes.
///
/// Cost: an all-gather of 40 bytes a rank and unit, besides the unit. Thread safety: units may be
/// touched from any one thread at a time, autograd's included.
class Pager {
 public:
  Pager(Group group, const PagerOptions& options);
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  /// From now on its tensors are looked after. `name` is said in errors. Call in the same order on
  /// all ranks. `pageable` must outlive this.
  void add(Pageable& pageable, std::string name);

  /// Its values are new: they have to be written back.
  void mark_written(const Pageable& pageable);
  /// So that with `elements` more there are no more than there may be, if that is possible.
  void make_room_for(int64_t elements);

  /// From now on what this rank touches comes to the bit, however parameters travel else.
  void set_exact(bool exact);
  /// The ranks' own parts have changed, or will. To be called on all ranks, between rounds.
  void drop_secondaries();

  /// Backward is done on this rank: returns when it is on all. Collective. Throws CommError.
  void settle();
  /// What was written to units goes to the ranks' own parts.
  void write_back();
  /// All values go; what was written first goes to the ranks' own parts.
  void release_all();
  /// After an operation failed: forgets what was under way.
  void abandon() noexcept;

  /// Elements that are whole, or on their way.
  int64_t live_elements() const { return live_elements_; }
  int64_t most_live_elements() const { return most_live_elements_; }
  /// Gathers since construction, and how many of them were started before they were needed.
  int64_t gathers() const { return gathers_; }
  int64_t prefetches() const { return prefetches_; }
  /// How many of them stayed among close ranks.
  int64_t secondary_gathers() const { return secondary_gathers_; }

 private:
  enum class State { kAbsent, kOnItsWay, kHere };
  struct Unit;
  using Index = int64_t;
  static constexpr Index kNone = -1;

  void pin(Unit& unit, bool writes);
  void unpin(Unit& unit) noexcept;
  void round(Index wanted);
  bool must_come(const Unit& unit) const;
  void bring(Index index, bool exact);
  void start(Unit& unit, bool exact);
  void arrive(Unit& unit);
  void let_go(Unit& unit);
  at::DataPtr find_slab(const PagedBuffer& buffer);
  void make_room(int64_t elements, Index keep);
  int64_t most() const;
  Index expected_after(Index index) const;
  void learn(Index next);

  Group group_;
  PagerOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;
  /// Of the CPU's memory that units have left: fetched anew it would have to be mapped anew, and
  /// lie between what training leaves.
  struct Slab {
    at::DataPtr memory;
    size_t bytes;
  };
  std::vector<Slab> slabs_;
  std::mutex mutex_;
  bool all_settled_ = false;
  bool exact_ = false;
  bool stale_ = false;  ///< Second copies, as this rank will say in the next round.

  /// The last three units and whether in backward: what came next.
  using History = std::array<Index, 4>;
  History history_{kNone, kNone, kNone, 0};
  std::map<History, Index> next_;

  int64_t clock_ = 0;
  int64_t live_elements_ = 0;
  int64_t most_live_elements_ = 0;
  int64_t three_largest_ = 0;
  int64_t gathers_ = 0;
  int64_t prefetches_ = 0;
  int64_t secondary_gathers_ = 0;
};

/// While it lives, what this rank touches comes to the bit.
class ExactValues {
 public:
  /// `pager`: may be null.
  explicit ExactValues(Pager* pager) : pager_(pager) { set(true); }
  ~ExactValues() { set(false); }
  ExactValues(const ExactValues&) = delete;
  ExactValues& operator=(const ExactValues&) = delete;

 private:
  void set(bool exact) {
    if (pager_ != nullptr) {
      pager_->set_exact(exact);
    }
  }
  Pager* pager_;
};

}  // namespace lockstep::zero
