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
/// until all ranks have published, and reads their data. The slots of a phase are reused two phases
/// later. By then this rank has seen every rank begin the phase in between, and a rank begins it
/// only after it has read all slots.
///
/// Not thread-safe.
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
  std::byte* own_slot() const { return segment_->slot(rank_, phase_); }
  Notice& own_notice() const { return segment_->control(rank_).notices[phase_ % 2]; }
  /// Begins the next phase, and wakes the ranks that wait for it.
  void publish();
  /// Returns whether all ranks have published this rank's last phase. Their slots and notices of
  /// that phase may then be read.
  bool all_published() const;
  const std::byte* slot_of(int rank) const { return segment_->slot(rank, phase_ - 1); }
  const Notice& notice_of(int rank) const {
    return segment_->control(rank).notices[(phase_ - 1) % 2];
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
  struct Loss {
    int rank;
    std::string why;
  };
  /// Returns the first rank of `awaited` that has died or left; else the first rank that has
  /// failed. Costs a system call for each.
  std::optional<Loss> lost(const std::vector<int>& awaited) const;
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
