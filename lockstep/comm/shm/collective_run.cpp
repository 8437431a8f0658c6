// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/collective_run.h"

#include <algorithm>
#include <cstring>

#include <c10/util/SmallVector.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/reduce.h"

namespace lockstep::comm::shm {
namespace {

// Up to this size every rank reduces everything: one exchange costs more than the extra work.
constexpr size_t kOneShotBytes = size_t{64} << 10U;

// A smaller chunk is not worth an exchange.
constexpr size_t kMinChunk = size_t{16} << 10U;

constexpr size_t kLine = 64;

using Sources = c10::SmallVector<const void*, 16>;
using Targets = c10::SmallVector<void*, 16>;

std::byte* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::byte*>(tensor.data_ptr()) : nullptr;
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

CollectiveRun::CollectiveRun(
    const Member& member, const Collective& collective, const Fingerprint& fingerprint)
    : collective_(collective),
      fingerprint_(fingerprint),
      input_(data_of(collective.input)),
      output_(data_of(collective.output)),
      ranks_(member.size()) {
  const at::Tensor& any = collective.output.defined() ? collective.output : collective.input;
  if (any.defined()) {
    dtype_ = any.scalar_type();
    element_bytes_ = any.element_size();
  }
  plan(member);
}

bool CollectiveRun::in_place() const {
  return collective_.op == Op::kAllReduce || collective_.op == Op::kBroadcast;
}

bool CollectiveRun::has_share_per_rank() const {
  return collective_.op == Op::kReduceScatter || collective_.op == Op::kAllToAll ||
         collective_.op == Op::kScatter;
}

bool CollectiveRun::is_source(int rank) const {
  switch (collective_.op) {
    case Op::kBroadcast:
    case Op::kScatter:
      return rank == collective_.root;
    case Op::kGather:
      return rank != collective_.root;
    case Op::kBarrier:
      return false;
    default:
      return true;
  }
}

void CollectiveRun::plan(const Member& member) {
  switch (collective_.op) {
    case Op::kAllReduce:
    case Op::kBroadcast:
    case Op::kReduceScatter:
    case Op::kScatter:
      share_bytes_ = collective_.output.nbytes();
      break;
    case Op::kAllGather:
    case Op::kGather:
      share_bytes_ = collective_.input.nbytes();
      break;
    case Op::kAllToAll:
      share_bytes_ = collective_.input.nbytes() / static_cast<size_t>(ranks_);
      break;
    default:
      break;
  }
  const size_t slot = member.segment().sizes().slot_bytes;
  chunk_bytes_ = has_share_per_rank() ? slot / static_cast<size_t>(ranks_) / kLine * kLine : slot;
  if (collective_.op == Op::kBroadcast || collective_.op == Op::kScatter ||
      collective_.op == Op::kGather) {
    // With several chunks one side writes while the other reads.
    const size_t quarter = (share_bytes_ / 4 + kLine - 1) / kLine * kLine;
    chunk_bytes_ = std::min(chunk_bytes_, std::max(quarter, kMinChunk));
  }
  two_phases_ = collective_.op == Op::kAllReduce && share_bytes_ > kOneShotBytes;
  const std::byte* read = in_place() ? output_ : input_;
  const std::byte* arena = member.segment().arena(member.rank());
  const bool inside = read >= arena && read < arena + member.segment().sizes().arena_bytes;
  if (inside && is_source(member.rank()) && share_bytes_ > 0) {
    own_offset_ = read - arena;
  }
}

CollectiveRun::Chunk CollectiveRun::chunk() const {
  return {done_bytes_, std::min(chunk_bytes_, share_bytes_ - done_bytes_)};
}

CollectiveRun::Chunk CollectiveRun::part(size_t length, int rank) const {
  const size_t lines = static_cast<size_t>(ranks_) * kLine;
  const size_t each = (length + lines - 1) / lines * kLine;
  const size_t begin = std::min(length, each * static_cast<size_t>(rank));
  return {begin, std::min(each, length - begin)};
}

void CollectiveRun::fill(Member& member) {
  const int me = member.rank();
  if (!compared_) {
    PhaseHeader& header = member.own_phase_header();
    header.fingerprint = fingerprint_;
    header.shared_offset = own_offset_;
    if (own_offset_ >= 0) {
      return;
    }
  }
  if (!is_source(me)) {
    return;
  }
  std::byte* slot = member.own_slot();
  const auto [begin, length] = chunk();
  if (has_share_per_rank()) {
    for (int to = 0; to < ranks_; ++to) {
      if (to != me) {
        const auto index = static_cast<size_t>(to);
        copy_bytes(slot + index * chunk_bytes_, input_ + index * share_bytes_ + begin, length);
      }
    }
  } else if (two_phases_) {
    // No other rank reads this rank's own part: it is reduced in place.
    const Chunk own = part(length, me);
    const size_t rest = own.begin + own.length;
    copy_bytes(slot, output_ + begin, own.begin);
    copy_bytes(slot + rest, output_ + begin + rest, length - rest);
  } else {
    copy_bytes(slot, (in_place() ? output_ : input_) + begin, length);
  }
}

std::byte* CollectiveRun::tensor_of(const Member& member, int rank) const {
  return member.segment().arena(rank) + member.phase_header_of(rank).shared_offset;
}

const std::byte* CollectiveRun::source(const Member& member, int rank) const {
  const auto mine = static_cast<size_t>(member.rank());
  const size_t own_share = has_share_per_rank() ? mine * share_bytes_ : 0;
  if (rank == member.rank()) {
    return (in_place() ? output_ : input_) + own_share + done_bytes_;
  }
  if (direct_) {
    return tensor_of(member, rank) + own_share;
  }
  return member.slot_of(rank) + (has_share_per_rank() ? mine * chunk_bytes_ : 0);
}

void CollectiveRun::read(Member& member) {
  const int me = member.rank();
  const auto [begin, length] = chunk();
  switch (collective_.op) {
    case Op::kAllReduce:
    case Op::kReduceScatter:
      reduce_part(member);
      break;
    case Op::kAllGather:
    case Op::kGather:
    case Op::kAllToAll:
      for (int from = 0; output_ != nullptr && from < ranks_; ++from) {
        copy_bytes(
            output_ + static_cast<size_t>(from) * share_bytes_ + begin,
            source(member, from),
            length);
      }
      break;
    case Op::kBroadcast:
    case Op::kScatter:
      if (me != collective_.root || !in_place()) {
        copy_bytes(output_ + begin, source(member, collective_.root), length);
      }
      break;
    default:
      break;
  }
}

void CollectiveRun::reduce_part(Member& member) const {
  const bool all = collective_.op == Op::kAllReduce;
  const auto [begin, length] = chunk();
  const Chunk own =
      all && (two_phases_ || direct_) ? part(length, member.rank()) : Chunk{0, length};
  Sources sources;
  Targets targets;
  for (int from = 0; from < ranks_; ++from) {
    sources.push_back(source(member, from) + own.begin);
    if (all && direct_) {
      targets.push_back(tensor_of(member, from) + own.begin);
    }
  }
  if (targets.empty()) {
    targets.push_back(output_ + begin + own.begin);
    if (two_phases_) {
      targets.push_back(member.own_slot() + own.begin);
    }
  }
  reduce(
      dtype_,
      collective_.reduce,
      sources,
      targets,
      static_cast<int64_t>(own.length / element_bytes_));
}

void CollectiveRun::collect(const Member& member) {
  const auto [begin, length] = chunk();
  for (int from = 0; from < ranks_; ++from) {
    if (from != member.rank()) {
      const Chunk theirs = part(length, from);
      copy_bytes(
          output_ + begin + theirs.begin, member.slot_of(from) + theirs.begin, theirs.length);
    }
  }
}

void CollectiveRun::compare_phase_headers(const Member& member) {
  int sources = 0;
  int in_arenas = 0;
  bool same = true;
  for (int rank = 0; rank < ranks_; ++rank) {
    const PhaseHeader& header = member.phase_header_of(rank);
    same = same && header.fingerprint == fingerprint_;
    sources += is_source(rank) ? 1 : 0;
    in_arenas += header.shared_offset >= 0 ? 1 : 0;
  }
  if (!same) {
    std::vector<Fingerprint> fingerprints;
    for (int rank = 0; rank < ranks_; ++rank) {
      fingerprints.push_back(member.phase_header_of(rank).fingerprint);
    }
    if (asks_alone(fingerprints)) {
      // The others compare again, with rank 0's next operation.
      must_refill_ = member.rank() != 0;
      if (!must_refill_) {
        deny(collective_);
        compared_ = true;
      }
      return;
    }
    throw CommError(
        name_of(collective_.op),
        mismatch(fingerprints).value_or("the ranks call different operations"));
  }
  compared_ = true;
  direct_ = in_arenas > 0 && in_arenas == sources;
  if (direct_) {
    chunk_bytes_ = share_bytes_;
    two_phases_ = false;
  }
  // Ranks with a tensor in an arena have not filled their slots.
  must_refill_ = in_arenas > 0 && !direct_;
}

bool CollectiveRun::advance(Member& member) {
  while (stage_ != Stage::kDone) {
    if (stage_ != Stage::kFill && !member.all_published()) {
      return false;
    }
    switch (stage_) {
      case Stage::kFill:
        fill(member);
        member.publish();
        stage_ = Stage::kRead;
        break;
      case Stage::kRead:
        if (!compared_) {
          compare_phase_headers(member);
          if (must_refill_) {
            stage_ = Stage::kFill;
            break;
          }
        }
        read(member);
        if (two_phases_ || direct_) {
          member.publish();
          stage_ = Stage::kCollect;
        } else {
          next_chunk();
        }
        break;
      case Stage::kCollect:
        // With direct reads this phase only shows that all ranks have read.
        if (!direct_) {
          collect(member);
        }
        next_chunk();
        break;
      case Stage::kDone:
        break;
    }
  }
  return true;
}

void CollectiveRun::next_chunk() {
  done_bytes_ += chunk().length;
  stage_ = done_bytes_ < share_bytes_ ? Stage::kFill : Stage::kDone;
}

}  // namespace lockstep::comm::shm
