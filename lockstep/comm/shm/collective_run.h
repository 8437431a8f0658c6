// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm::shm {

/// A collective under way, as one rank sees it: goes on as far as the others let it and never
/// waits itself.
///
/// Three ways, chosen from what all ranks know alike:
/// - small all-reduces: every rank copies its data into its slot and, when all have, reduces all of
///   it; one phase;
/// - large ones: a slot full at a time, each rank reduces its part of it and then takes the others'
///   parts; two phases a slot full;
/// - where what is read lies in the ranks' arenas (Transport::allocate), nothing is copied into
///   slots: peers read, and for an all-reduce write, where the tensors are.
///
/// The first phase carries what each rank is about to do; where they differ nothing more is
/// read. Order of reduction: rank 0 first, so that the bits are those of the thread transport.
/// Thread safety: none.
class CollectiveRun {
 public:
  /// `collective` must stay alive, its tensors too, until done. Starts nothing yet.
  CollectiveRun(const Member& member, const Collective& collective, const Fingerprint& print);

  /// True once the result may be read. CommError: the ranks disagree on what to do.
  bool advance(Member& member);

 private:
  enum class Stage { kFill, kUse, kCollect, kDone };

  /// A stretch of each rank's share, as much of it as a slot takes.
  struct Chunk {
    size_t begin, length;
  };
  Chunk chunk() const;
  /// The part of `length` bytes that `rank` reduces.
  Chunk part(size_t length, int rank) const;
  void measure(const Member& member);
  void fill(Member& member);
  void agree(const Member& member);
  void use(Member& member);
  void reduce_part(Member& member) const;
  void collect(const Member& member);
  void next_chunk();
  /// Whether others read what `rank` brings.
  bool is_source(int rank) const;
  /// Whether what a rank brings is cut into one share for each.
  bool needs_others_parts() const;
  /// Whether a rank's only tensor is `output`.
  bool in_place() const;
  std::byte* tensor_of(const Member& member, int rank) const;
  /// What `rank` has brought for this one, of the present stretch.
  const std::byte* source(const Member& member, int rank) const;

  const Collective& collective_;
  Fingerprint print_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  c10::ScalarType dtype_ = c10::ScalarType::Byte;
  size_t element_bytes_ = 1;
  size_t share_bytes_ = 0;  ///< What one rank brings for, or gets from, another.
  size_t chunk_bytes_ = 0;  ///< As much of a share as goes into a slot.
  int ranks_ = 0;
  bool two_phases_ = false;
  bool agreed_ = false;
  bool direct_ = false;  ///< Ranks read each other's tensors where they lie.
  bool fill_again_ = false;
  int64_t own_offset_ = -1;  ///< Of this rank's tensor in its arena.
  Stage stage_ = Stage::kFill;
  size_t done_bytes_ = 0;
};

}  // namespace lockstep::comm::shm
