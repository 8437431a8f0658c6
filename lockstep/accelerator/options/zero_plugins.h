// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/offload/options.h"

namespace lockstep {

struct ZeroPlugin;

/// torch's names for what is divided among whom.
enum class ShardingStrategy {
  kFullShard,    ///< FULL_SHARD: parameters, gradients and optimizer state; ZeRO's stage 3.
  kShardGradOp,  ///< SHARD_GRAD_OP: gradients and optimizer state; stage 2.
  kNoShard,      ///< NO_SHARD: nothing; data parallel.
  /// HYBRID_SHARD: as kFullShard, and the processes of each host keep a second copy of the
  /// parameters together, so that only the first gather after an update leaves the host. Gradients
  /// and optimizer state are divided among all, where torch has a copy on each host.
  kHybridShard,
  /// _HYBRID_SHARD_ZERO2: parameters are whole on every process; stage 2, among all.
  kHybridShardZero2
};

/// When the parameters that come next are asked for.
enum class BackwardPrefetch {
  kPre,  ///< BACKWARD_PRE: before those in use have been used.
  kNone  ///< NO_PREFETCH
};

/// What is brought and let go of together.
enum class AutoWrapPolicy {
  kNone,        ///< NO_WRAP: buckets of a sixteenth of the model.
  kSize,        ///< SIZE_BASED_WRAP, of min_num_params.
  kTransformer  ///< TRANSFORMER_BASED_WRAP, by transformer_layer_cls_to_wrap.
};

/// How `save_state` writes a model that is divided among processes. Either is loaded by any number
/// of processes at any stage, and without ZeRO. The optimizer's state is in slices with both.
enum class StateDictType {
  kShardedStateDict,  ///< SHARDED_STATE_DICT: each process the parts that it has.
  /// FULL_STATE_DICT: whole tensors in model.safetensors, as data parallel has it. They come one
  /// after the other to the main process, which writes alone meanwhile: slower, and no process has
  /// more than one of them besides what it computes with. Saved with `async`, the main process has
  /// a copy of all of the model in the host's memory. Not where parameters have fp32 masters.
  kFullStateDict,
  /// LOCAL_STATE_DICT: flat memory as a process has it, for as many processes alone. Refused.
  kLocalStateDict
};

/// How a model is divided, in the words of torch's FSDP and Accelerate's
/// FullyShardedDataParallelPlugin. What it says is what ZeroPlugin does.
///
/// What of theirs is missing here is always so: original parameters stay (use_orig_params), modules
/// start alike (sync_module_states), and gathers are limited (limit_all_gathers).
/// Accelerator::zero_init builds a model that does not fit (cpu_ram_efficient_loading),
/// activation_checkpoint computes activations again.
struct FsdpPlugin {
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  /// FSDP 2's way to say it: true is kFullShard, false kShardGradOp. Not beside another strategy.
  std::optional<bool> reshard_after_forward = std::nullopt;
  AutoWrapPolicy auto_wrap_policy = AutoWrapPolicy::kNone;
  /// kSize: a bucket takes parameters until it has so many.
  int64_t min_num_params = 100'000'000;
  /// kTransformer: each module of these classes ("TransformerEncoderLayer") is one bucket. Where
  /// parameters stay (kShardGradOp, kHybridShardZero2) nothing comes and goes, and buckets are as
  /// without.
  std::vector<std::string> transformer_layer_cls_to_wrap = {};
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  /// The optimizer's state, and in stage 3 the parameters, in the host's memory; the host updates.
  bool cpu_offload = false;
  StateDictType state_dict_type = StateDictType::kShardedStateDict;

  /// ConfigError for what goes against itself. None: data parallel. `local_size`: processes of a
  /// host; 0: hosts differ.
  std::optional<ZeroPlugin> zero(int local_size) const;
};

/// Accelerate's DeepSpeedPlugin, as far as it says how a model is divided. For a ds_config.json use
/// `initialize`, DeepSpeed's own engine.
struct DeepSpeedPlugin {
  /// 0: data parallel.
  int zero_stage = 2;
  /// Instead of AcceleratorOptions::gradient_accumulation_steps.
  std::optional<int64_t> gradient_accumulation_steps = std::nullopt;
  /// See ZeroPlugin::offload_optimizer and offload_param, which say more.
  OffloadDevice offload_optimizer_device = OffloadDevice::kNone;
  OffloadDevice offload_param_device = OffloadDevice::kNone;
  std::filesystem::path offload_optimizer_nvme_path = {};
  std::filesystem::path offload_param_nvme_path = {};

  /// ConfigError for a stage that there is not. None: data parallel.
  std::optional<ZeroPlugin> zero() const;
};

/// ConfigError, in the name of `where`, for kLocalStateDict.
void refuse_local_state_dict(StateDictType type, const char* where);

}  // namespace lockstep
