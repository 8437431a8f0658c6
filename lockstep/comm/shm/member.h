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

/// Gives a rank access to a segment.
///
/// Ranks proceed in phases. In each phase a rank writes data for the others, publishes it, waits
/// until all ranks have published, and reads their data. Phase p + 2 reuses the slots of phase p. A
/// rank writes them only after it has seen every rank publish phase p + 1, and a rank publishes
/// p + 1 only after it has read all slots of phase p.
///
class Member {
 public:
  /// Joins as `rank`. The other ranks may join later.
  Member(std::shared_ptr<Segment> segment, int rank);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const { return rank_; }
  int size() const { return segment_->sizes().ranks; }
  Segment& segment() const { return *segment_; }
  const std::shared_ptr<Segment>& shared_segment() const { return segment_; }

  /// Returns the next phase: writes before publish() belong to it.
  uint64_t phase() const { return phase_; }
  /// Returns this rank's slot of the next phase.
  std::byte* own_slot() const { return segment_->slot(rank_, phase_); }
  /// Returns this rank's header of the next phase.
  PhaseHeader& own_phase_header() const {
    return segment_->control(rank_).phase_headers[phase_ % 2];
  }
  /// Begins the next phase, and wakes the ranks that wait for it.
  void publish();
  /// Returns whether all ranks have published this rank's last phase. Their slots and headers of
  /// that phase may then be read.
  bool all_published() const;
  /// Returns the slot of `rank` in the last published phase.
  const std::byte* slot_of(int rank) const { return segment_->slot(rank, phase_ - 1); }
  /// Returns the header of `rank` in the last published phase.
  const PhaseHeader& phase_header_of(int rank) const {
    return segment_->control(rank).phase_headers[(phase_ - 1) % 2];
  }

  /// Returns the channel from `from` to `to`, one of which is this rank. Throws Error if no memory
  /// is left.
  Channel& channel(int from, int to);

  /// Opens pidfds of the peers, all of which have joined, so that their process ids cannot be
  /// reused unnoticed.
  void watch_peers();

  /// Returns the ranks that have not published this rank's last phase.
  std::vector<int> missing() const;
  /// Holds a rank that others wait for in vain, and the reason.
  struct LostRank {
    int rank;
    std::string why;
  };
  /// Returns the first rank of `awaited` that has died or left; else the first rank that has
  /// failed. Costs a system call for each.
  std::optional<LostRank> lost(const std::vector<int>& awaited) const;
  /// Returns whether a rank has left the group, as it does at its regular end.
  bool has_left(int peer) const {
    return segment_->control(peer).state.load(std::memory_order_acquire) == RankState::kLeft;
  }
  /// Reports this rank's failure and its reason to all others.
  void fail(const std::string& why);
  /// Reports to waiting ranks that this rank has left.
  void leave();

 private:
  void wake_all();
  bool has_died(int peer) const;

  std::shared_ptr<Segment> segment_;
  int rank_;
  uint64_t phase_ = 0;
  std::vector<bool> channels_to_, channels_from_;  ///< Channels with allocated pages.
  std::vector<UniqueFd> processes_;                ///< pidfds of the peers; none for this process.
};

}  // namespace lockstep::comm::shm
