// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/enum_words.h"
#include "lockstep/offload/options.h"

namespace lockstep {

struct ZeroPlugin;

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

/// The sharding options of Accelerate's DeepSpeedPlugin. For a ds_config.json use `initialize`,
/// DeepSpeed's engine.
struct DeepSpeedPlugin {
  /// 0: data parallel.
  int zero_stage = 2;
  /// Overrides AcceleratorOptions::gradient_accumulation_steps.
  std::optional<int64_t> gradient_accumulation_steps = std::nullopt;
  /// See ZeroPlugin::offload_optimizer and offload_param.
  OffloadDevice offload_optimizer_device = OffloadDevice::kNone;
  OffloadDevice offload_param_device = OffloadDevice::kNone;
  std::filesystem::path offload_optimizer_nvme_path = {};
  std::filesystem::path offload_param_nvme_path = {};

  /// Throws ConfigError for an unknown stage. None: data parallel.
  std::optional<ZeroPlugin> zero() const;
};

/// Throws ConfigError, in the name of `where`, for kLocalStateDict.
void refuse_local_state_dict(StateDictType type, const char* where);

}  // namespace lockstep
