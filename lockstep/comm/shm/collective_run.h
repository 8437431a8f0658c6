// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm::shm {

/// One rank's view of a running collective. It progresses as far as the other ranks allow, and
/// never blocks.
///
/// Three algorithms, chosen by data that all ranks know:
/// - small all-reduces: every rank copies its data into its slot and, after all have, reduces all
///   of it; one phase;
/// - large ones: slot by slot, each rank reduces its part and then copies the others' parts; two
///   phases a slot;
/// - tensors in the ranks' arenas (Transport::allocate): nothing is copied into slots; peers read,
///   and for an all-reduce write, the tensors in place.
///
/// The first phase carries each rank's fingerprint; if they differ no data is read. Order of
/// reduction: rank 0 first, bit-exact with the thread transport. Not thread-safe.
class CollectiveRun {
 public:
  /// `collective` and its tensors must live until done. Does not start yet.
  CollectiveRun(const Member& member, const Collective& collective, const Fingerprint& print);

  /// Returns true if the result may be read. CommError: the fingerprints differ.
  bool advance(Member& member);

 private:
  enum class Stage { kFill, kUse, kCollect, kDone };

  /// A chunk of each rank's share that fits into a slot.
  struct Chunk {
    size_t begin, length;
  };
  Chunk chunk() const;
  /// The range of `length` bytes that `rank` reduces.
  Chunk part(size_t length, int rank) const;
  void measure(const Member& member);
  void fill(Member& member);
  void agree(const Member& member);
  void use(Member& member);
  void reduce_part(Member& member) const;
  void collect(const Member& member);
  void next_chunk();
  /// Whether other ranks read the input of `rank`.
  bool is_source(int rank) const;
  /// Whether a rank's input consists of one share for each rank.
  bool needs_others_parts() const;
  /// Whether a rank's only tensor is `output`.
  bool in_place() const;
  std::byte* tensor_of(const Member& member, int rank) const;
  /// The input of `rank` for this one, in the current chunk.
  const std::byte* source(const Member& member, int rank) const;

  const Collective& collective_;
  Fingerprint print_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  c10::ScalarType dtype_ = c10::ScalarType::Byte;
  size_t element_bytes_ = 1;
  size_t share_bytes_ = 0;  ///< Bytes that one rank contributes for, or gets from, another.
  size_t chunk_bytes_ = 0;  ///< The part of a share that fits into a slot.
  int ranks_ = 0;
  bool two_phases_ = false;
  bool agreed_ = false;
  bool direct_ = false;  ///< Ranks read each other's tensors in place.
  bool fill_again_ = false;
  int64_t own_offset_ = -1;  ///< The offset of this rank's tensor in its arena.
  Stage stage_ = Stage::kFill;
  size_t done_bytes_ = 0;
};

}  // namespace lockstep::comm::shm
