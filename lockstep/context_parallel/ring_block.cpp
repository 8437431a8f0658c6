// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/ring_block.h"

namespace lockstep::context_parallel {

RingBlock ring_block(const SequenceShard& shard, int source, bool is_causal) {
  const int64_t local = shard.local_length();
  if (!is_causal || source == shard.rank()) {
    return {.keys = local, .is_causal = is_causal};
  }
  const bool is_zigzag = shard.layout() == SequenceLayout::kZigzag;
  if (source < shard.rank()) {
    return {.keys = is_zigzag ? local / 2 : local};
  }
  return is_zigzag ? RingBlock{.query_begin = local / 2, .keys = local} : RingBlock{};
}

}  // namespace lockstep::context_parallel
