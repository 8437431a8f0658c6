// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/fsdp/words.h"
#include "lockstep/offload/options.h"

namespace lockstep {

struct ZeroPlugin;

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
