// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/file_map.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm::shm {

enum class RankState : uint32_t {
  kAbsent,  ///< Has not joined yet.
  kJoined,
  kLeft,   ///< Has destroyed its end of the group.
  kFailed  ///< Has failed; `why` is the reason.
};

/// Holds the header of a rank's data in a phase. Other ranks read it before the data.
struct PhaseHeader {
  Fingerprint fingerprint;
  /// The offset in its arena of the tensor that others read; -1: not in the arena.
  int64_t shared_offset = -1;
};

/// Holds the control data that one rank writes and all others read. Each part has separate cache
/// lines.
struct Control {
  /// The number of phases that this rank has begun. A reader of it sees all earlier writes.
  alignas(64) std::atomic<uint64_t> published;
  /// The futex on which the rank sleeps; peers wake it after a change.
  alignas(64) std::atomic<uint32_t> wake_count;
  /// Number of calls between announce_sleep() and end_sleep(); at 0 peers need not wake the rank.
  std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<RankState> state;
  int32_t pid;
  std::atomic<uint64_t> number;  ///< Set by the rank; 0: not yet.
  std::array<char, 512> why;     ///< Written before `state` becomes kFailed.
  alignas(64) std::array<PhaseHeader, 2> phase_headers;
};

/// Passes messages from one rank to another: `posted` chunks were written, `taken` chunks were
/// read.
struct Channel {
  alignas(64) std::atomic<uint32_t> posted;
  Fingerprint sent;  ///< The posted message's.
  alignas(64) std::atomic<uint32_t> taken;
  std::atomic<uint32_t> refused;  ///< The receiver expects another message: `expected`.
  Fingerprint expected;
};

/// Sets the sizes of a segment; a default replaces 0.
struct SegmentSizes {
  int ranks = 0;
  /// Slots for each rank. The protocol needs two, see member.h; its test uses one to show the race.
  int slots = 2;
  size_t slot_bytes = 0;   ///< 0: 1 MiB, less for many ranks.
  size_t chunk_bytes = 0;  ///< Half of a channel. 0: 128 KiB, less for many ranks.
  /// Address space of a rank's shared tensors. 0: as much as the host has memory.
  size_t arena_bytes = 0;
};

/// Rounds up to full pages, at least one.
size_t round_up_to_pages(size_t bytes);

/// Maps the shared memory of a group's ranks.
///
/// It is an anonymous file (memfd): it has no name that could leak or that another user could open,
/// and is freed with the last rank. Its size is sealed. Every page is allocated before its first
/// use, so too little memory is an Error and never SIGBUS. Thread-safe.
class Segment {
 public:
  /// Creates a segment for all ranks. Throws Error if the kernel has no memory for it.
  static std::shared_ptr<Segment> create(SegmentSizes sizes);
  /// Maps the segment of another process. Throws CommError if `fd` is not a segment.
  static std::shared_ptr<Segment> attach(UniqueFd fd);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const SegmentSizes& sizes() const { return sizes_; }
  int fd() const { return fd_.get(); }
  Control& control(int rank) const;
  /// Returns the data of `rank` in a phase, slot_bytes long.
  std::byte* slot(int rank, uint64_t phase) const;
  Channel& channel(int from, int to) const;
  std::byte* chunk(int from, int to, uint32_t number) const;
  std::byte* arena(int rank) const;

  /// Allocates these pages. Throws Error if no memory is left.
  void reserve(const std::byte* begin, size_t bytes, const char* what) const;
  void reserve_channel(int from, int to) const;
  /// Frees pages; they read as zeros afterwards.
  void release(const std::byte* begin, size_t bytes) const noexcept;

 private:
  /// Offsets of the parts, in this order.
  struct Offsets {
    explicit Offsets(const SegmentSizes& sizes);
    size_t controls, slots, channels, arenas, end;
  };

  Segment(UniqueFd fd, SegmentSizes sizes);
  size_t channel_offset(int from, int to) const;

  UniqueFd fd_;
  SegmentSizes sizes_;
  Offsets offsets_;
  FileMap map_;
};

}  // namespace lockstep::comm::shm
