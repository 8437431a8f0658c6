// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm::shm {

/// Runs one rank's side of a collective. It progresses as far as the other ranks allow, and never
/// blocks.
///
/// It chooses one of three algorithms from data that all ranks have:
/// - small all-reduces: every rank copies its data into its slot and, after all ranks have, reduces
///   all slots; one phase;
/// - large all-reduces: slot by slot, each rank reduces its part and then copies the others' parts;
///   two phases per chunk;
/// - tensors in the ranks' arenas (Transport::allocate): nothing is copied into slots; peers read,
///   and for an all-reduce write, the tensors in place.
///
/// The first phase has each rank's fingerprint; if fingerprints differ, no data is read. It is
/// repeated after a question of rank 0 alone, and if some tensors are in arenas, but not all.
/// Order of reduction: rank 0 first, bit-exact with the thread transport.
///
/// Terms: a share is the bytes that one rank sends to, or gets from, another. A chunk is the range
/// of each share that is in a slot at a time. A part is the range of a chunk that one rank reduces.
class CollectiveRun {
 public:
  /// `collective` and its tensors must live until done. Does not start yet.
  CollectiveRun(const Member& member, const Collective& collective, const Fingerprint& fingerprint);

  /// Returns true if the result may be read. Throws CommError if the fingerprints differ.
  bool advance(Member& member);

 private:
  enum class Stage { kFill, kRead, kCollect, kDone };

  /// Holds a range of bytes.
  struct Chunk {
    size_t begin, length;
  };
  /// Returns the current chunk.
  Chunk chunk() const;
  /// Returns the part of `rank` in a chunk of `length` bytes.
  Chunk part(size_t length, int rank) const;
  void plan(const Member& member);
  void fill(Member& member);
  void compare_phase_headers(const Member& member);
  void read(Member& member);
  void reduce_part(Member& member) const;
  void collect(const Member& member);
  void next_chunk();
  /// Returns whether other ranks read the input of `rank`.
  bool is_source(int rank) const;
  /// Returns whether a rank's input consists of one share for each rank.
  bool has_share_per_rank() const;
  /// Returns whether a rank's only tensor is `output`.
  bool in_place() const;
  std::byte* tensor_of(const Member& member, int rank) const;
  /// Returns the input of `rank` for this rank, in the current chunk.
  const std::byte* source(const Member& member, int rank) const;

  const Collective& collective_;
  Fingerprint fingerprint_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  c10::ScalarType dtype_ = c10::ScalarType::Byte;
  size_t element_bytes_ = 1;
  size_t share_bytes_ = 0;
  size_t chunk_bytes_ = 0;  ///< The last chunk may be shorter.
  int ranks_ = 0;
  bool two_phases_ = false;
  bool compared_ = false;     ///< The fingerprints were compared.
  bool direct_ = false;       ///< Ranks read each other's tensors in place.
  bool must_refill_ = false;  ///< The first phase has to be repeated.
  int64_t own_offset_ = -1;   ///< The offset of this rank's tensor in its arena.
  Stage stage_ = Stage::kFill;
  size_t done_bytes_ = 0;
};

}  // namespace lockstep::comm::shm
