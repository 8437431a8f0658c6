// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lockstep/context_parallel/sequence_shard.h"

namespace lockstep::context_parallel {

/// Selects what a rank computes with the keys of one rank: local rows `query_begin` to the end, and
/// the first `keys` of the other rank's keys.
struct RingBlock {
  int64_t query_begin = 0;
  int64_t keys = 0;        ///< 0: the block is skipped.
  bool is_causal = false;  ///< Only the rank's own block.
};

/// Returns the block of `shard`'s rank and the keys of rank `source`. Without a causal mask it is
/// full. With one it is:
///
///     source     contiguous   zigzag
///     own        causal       causal: its positions increase, so the mask of the part is exact
///     lower      full         all queries, the first half of the keys
///     higher     skipped      the second half of the queries, all keys
RingBlock ring_block(const SequenceShard& shard, int source, bool is_causal);

}  // namespace lockstep::context_parallel
