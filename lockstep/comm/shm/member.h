// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/shm/segment.h"

namespace lockstep::comm::shm {

/// A rank's own end of a segment.
///
/// Phases are what the ranks do together: in each, a rank writes what the others shall read, says
/// so (publish), and waits until all have; then it may read theirs. The slots of a phase are
/// written again two phases later, when this rank has seen everybody begin the phase in between,
/// which they do only after they have read everything of this one.
///
/// Thread safety: none.
class Member {
 public:
  /// Joins as `rank`. The other ranks may still be on their way.
  Member(std::shared_ptr<Segment> segment, int rank);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const { return rank_; }
  int size() const { return segment_->sizes().ranks; }
  Segment& segment() const { return *segment_; }
  const std::shared_ptr<Segment>& shared_segment() const { return segment_; }

  /// The phase that is next: what is written before publish() belongs to it.
  uint64_t phase() const { return phase_; }
  std::byte* own_slot() const { return segment_->slot(rank_, phase_); }
  Notice& own_notice() const { return segment_->control(rank_).notices[phase_ % 2]; }
  void publish();
  /// Whether all ranks have published the last phase that this one has: then their slots and
  /// notices of it may be read.
  bool all_published() const;
  const std::byte* slot_of(int rank) const { return segment_->slot(rank, phase_ - 1); }
  const Notice& notice_of(int rank) const {
    return segment_->control(rank).notices[(phase_ - 1) % 2];
  }

  /// That from `from` to `to`, one of which is this rank. Error: no memory for it.
  Channel& channel(int from, int to);

  /// Holds on to the processes of the peers, all of which have come: from now on the number of one
  /// cannot come to mean another.
  void watch_peers();

  /// Ranks that have not published the last phase that this one has.
  std::vector<int> missing() const;
  /// Why waiting for `awaited` is in vain, if that is certain: one of them has died or left, or,
  /// which is told only if it is not so, any rank has given up. Costs a system call for each.
  struct Loss {
    int rank;
    std::string why;
  };
  std::optional<Loss> lost(const std::vector<int>& awaited) const;
  /// Tells all others that this rank gives up, and why.
  void fail(const std::string& why);
  /// Tells whoever may still wait for this rank that it has left.
  void leave();

 private:
  /// Wakes whoever sleeps.
  void ring_all();
  bool has_died(int peer) const;

  std::shared_ptr<Segment> segment_;
  int rank_;
  uint64_t phase_ = 0;
  std::vector<bool> channels_to_, channels_from_;  ///< Whose pages exist.
  std::vector<UniqueFd> processes_;  ///< pidfds of the peers; none for this process itself.
};

}  // namespace lockstep::comm::shm
