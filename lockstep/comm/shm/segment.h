// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm::shm {

enum class RankState : uint32_t {
  kAbsent,  ///< Has not come yet.
  kHere,
  kLeft,   ///< Has destroyed its end of the group.
  kFailed  ///< Has given up; `why` says for what reason.
};

/// What a rank says to the others about a phase, before they look at its data.
struct Notice {
  Fingerprint print;
  /// Where in its arena the tensor lies that others read; -1: not there.
  int64_t shared_offset = -1;
};

/// What one rank writes and all others read. Each part has cache lines of its own.
struct Control {
  /// How many phases this rank has begun: what it wrote before is there for whoever reads this.
  alignas(64) std::atomic<uint64_t> published;
  /// The rank sleeps on `bell`; whoever changes something it may wait for rings it.
  alignas(64) std::atomic<uint32_t> wake_count;
  std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<RankState> state;
  int32_t pid;
  std::array<char, 512> why;  ///< Written before `state` becomes kFailed.
  alignas(64) std::array<Notice, 2> notices;
};

/// A pipe for messages from one rank to another: `posted` pieces were written, `taken` of them
/// read.
struct Channel {
  alignas(64) std::atomic<uint32_t> posted;
  Fingerprint sent;  ///< Of the message whose pieces are posted.
  alignas(64) std::atomic<uint32_t> taken;
  std::atomic<uint32_t> refused;  ///< The receiver expects another message: `expected`.
  Fingerprint expected;
};

struct SegmentSizes {
  int ranks = 0;
  /// Rounds of data a rank may be ahead of who still reads. Two is what the protocol needs (see
  /// collective.h); one is the race that its test must find.
  int slots = 2;
  size_t slot_bytes = 0;   ///< 0: 1 MiB, less for many ranks.
  size_t chunk_bytes = 0;  ///< Half of a channel. 0: 128 KiB, less for many ranks.
  size_t arena_bytes = 0;  ///< Address space of a rank's shared tensors. 0: the memory of the host.
};

/// In whole pages, at least one.
size_t whole_pages(size_t bytes);

/// The memory that all ranks of a group map, from an anonymous file (memfd): it has no name that
/// could leak or that another user could open, and is gone when the last rank is, however that
/// ended. Its size is sealed.
///
/// Every page is allocated before it is touched, so that too little memory is an Error and never
/// SIGBUS. Thread-safe.
class Segment {
 public:
  /// Error: the kernel has no memory for it.
  static std::shared_ptr<Segment> create(SegmentSizes sizes);
  /// Maps what another process made. CommError: it is not such a segment.
  static std::shared_ptr<Segment> attach(UniqueFd fd);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const SegmentSizes& sizes() const { return sizes_; }
  int fd() const { return fd_.get(); }
  Control& control(int rank) const;
  /// Where `rank` puts its data of a phase, slot_bytes long.
  std::byte* slot(int rank, uint64_t phase) const;
  Channel& channel(int from, int to) const;
  std::byte* chunk(int from, int to, uint32_t number) const;
  std::byte* arena(int rank) const;

  /// Sees to it that these pages exist. Error if there is no memory for them.
  void reserve(const std::byte* begin, size_t bytes, const char* what) const;
  void reserve_channel(int from, int to) const;
  /// Gives pages back; they read as zeros if touched again.
  void release(const std::byte* begin, size_t bytes) const noexcept;

 private:
  /// Where the parts begin, in this order.
  struct Offsets {
    explicit Offsets(const SegmentSizes& sizes);
    size_t controls, slots, channels, arenas, end;
  };

  Segment(UniqueFd fd, SegmentSizes sizes);
  size_t channel_offset(int from, int to) const;

  UniqueFd fd_;
  SegmentSizes sizes_;
  Offsets offsets_;
  std::byte* base_ = nullptr;
};

}  // namespace lockstep::comm::shm
