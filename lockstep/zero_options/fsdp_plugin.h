// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/zero_options/zero_plugin.h"

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

/// Sharding options in the words of torch's FSDP and Accelerate's FullyShardedDataParallelPlugin.
/// They are translated to ZeroPlugin.
///
/// Options that are missing here always apply: original parameters stay (use_orig_params), modules
/// start equal (sync_module_states), and all-gathers are limited (limit_all_gathers). Use
/// Accelerator::zero_init for a model that does not fit (cpu_ram_efficient_loading), and
/// activation_checkpoint to recompute activations.
struct FsdpPlugin {
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  /// FSDP 2's option: true is kFullShard, false kShardGradOp. Not together with another strategy.
  std::optional<bool> reshard_after_forward = std::nullopt;
  AutoWrapPolicy auto_wrap_policy = AutoWrapPolicy::kNone;
  /// kSize: the number of parameters at which a bucket is closed.
  int64_t min_num_params = 100'000'000;
  /// kTransformer: each module of these classes ("TransformerEncoderLayer") is one bucket. No
  /// effect with kShardGradOp and kHybridShardZero2, which do not shard parameters.
  std::vector<std::string> transformer_layer_cls_to_wrap = {};
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  /// Optimizer state, and in stage 3 the parameters, in the host's memory; the host updates.
  bool cpu_offload = false;
  StateDictType state_dict_type = StateDictType::kShardedStateDict;

  /// Throws ConfigError for contradictory options. None: data parallel. `local_size`: processes of
  /// a host; 0: hosts differ.
  std::optional<ZeroPlugin> zero(int local_size) const;
};

}  // namespace lockstep
