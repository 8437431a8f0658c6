// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "lockstep/base/enum_words.h"

namespace lockstep {

/// torch's names of sharding strategies.
enum class ShardingStrategy {
  kFullShard,    ///< FULL_SHARD: parameters, gradients and optimizer state; ZeRO's stage 3.
  kShardGradOp,  ///< SHARD_GRAD_OP: gradients and optimizer state; stage 2.
  kNoShard,      ///< NO_SHARD: data parallel.
  /// HYBRID_SHARD: as kFullShard, and the processes of each host keep a secondary shard of the
  /// parameters, so that only the first all-gather after an update leaves the host. Gradients and
  /// optimizer state are sharded over all processes, while torch has a copy on each host.
  kHybridShard,
  /// _HYBRID_SHARD_ZERO2: parameters are replicated; stage 2 over all processes.
  kHybridShardZero2
};

/// The time at which the next parameters are prefetched.
enum class BackwardPrefetch {
  kPre,  ///< BACKWARD_PRE: before the current ones are used.
  kNone  ///< NO_PREFETCH
};

/// The rule that groups parameters into sharded units.
enum class AutoWrapPolicy {
  kNone,        ///< NO_WRAP: buckets of a sixteenth of the model.
  kSize,        ///< SIZE_BASED_WRAP, of min_num_params.
  kTransformer  ///< TRANSFORMER_BASED_WRAP, by transformer_layer_cls_to_wrap.
};

/// The format in which `save_state` writes a sharded model. Any number of processes at any stage,
/// and programs without ZeRO, can load either. The optimizer's state is in slices with both.
enum class StateDictType {
  kShardedStateDict,  ///< SHARDED_STATE_DICT: each process writes its shards.
  /// FULL_STATE_DICT: full tensors in model.safetensors, as with data parallel. The main process
  /// gathers and writes one after the other: slower, and the extra memory of each process is one
  /// tensor. With `async`, the main process has a copy of the full model in host memory. Not with
  /// fp32 masters.
  kFullStateDict,
  /// LOCAL_STATE_DICT: the flat memory of one process, for the same number of processes only.
  /// Refused.
  kLocalStateDict
};

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<StateDictType> = {
    "SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"};

}  // namespace lockstep
