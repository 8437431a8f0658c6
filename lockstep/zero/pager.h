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

/// What a Pager brings together from all ranks, and lets go of again.
class Pageable {
 public:
  Pageable() = default;
  virtual ~Pageable() = default;
  Pageable(const Pageable&) = delete;
  Pageable& operator=(const Pageable&) = delete;

  virtual PagedBuffer& buffer() = 0;
  /// Starts to fill the buffer, which has memory, from all ranks. Collective.
  virtual Pending start_gather(Group& group) = 0;
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
/// What was not touched for the longest time goes first when more than `max_live_elements` would be
/// whole. A unit that was written to (a loaded checkpoint, an initialisation) is written back
/// before it goes.
///
/// Cost: an all-gather of 24 bytes a rank and unit, besides the unit. Thread safety: units may be
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

 private:
  enum class State { kAbsent, kOnItsWay, kHere };
  struct Unit;
  using Index = int64_t;
  static constexpr Index kNone = -1;

  void pin(Unit& unit, bool writes);
  void unpin(Unit& unit) noexcept;
  void round(Index wanted);
  void bring(Index index);
  void start(Unit& unit);
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
};

}  // namespace lockstep::zero
