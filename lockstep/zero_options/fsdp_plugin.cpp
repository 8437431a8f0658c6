// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero_options/fsdp_plugin.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/zero_options/check_zero_options.h"
#include "lockstep/zero_options/fsdp_table.h"

namespace lockstep {
namespace {

ShardingStrategy strategy_of(const FsdpPlugin& plugin) {
  if (!plugin.reshard_after_forward) {
    return plugin.sharding_strategy;
  }
  if (plugin.sharding_strategy != ShardingStrategy::kFullShard) {
    throw ConfigError(
        "fsdp_plugin",
        "reshard_after_forward and sharding_strategy are both set, but configure the same thing; "
        "give only one");
  }
  return *plugin.reshard_after_forward ? ShardingStrategy::kFullShard
                                       : ShardingStrategy::kShardGradOp;
}

/// Refuses options that need a sharding strategy.
void check_data_parallel(const FsdpPlugin& plugin) {
  if (plugin.auto_wrap_policy != AutoWrapPolicy::kNone) {
    throw ConfigError(
        "fsdp_plugin", "NO_SHARD shards nothing, so an auto_wrap_policy has no effect; remove it");
  }
  if (plugin.cpu_offload) {
    throw ConfigError(
        "fsdp_plugin",
        "NO_SHARD keeps everything on the device; for cpu_offload use SHARD_GRAD_OP or FULL_SHARD");
  }
}

void set_units(const FsdpPlugin& plugin, ZeroPlugin& zero) {
  const bool classes = !plugin.transformer_layer_cls_to_wrap.empty();
  if (classes != (plugin.auto_wrap_policy == AutoWrapPolicy::kTransformer)) {
    throw ConfigError(
        "fsdp_plugin",
        fmt::format(
            "auto_wrap_policy kTransformer and transformer_layer_cls_to_wrap belong together; got "
            "{} classes and {}; give both or neither",
            plugin.transformer_layer_cls_to_wrap.size(),
            classes ? "another policy" : "the policy"));
  }
  if (zero.stage == 3) {  // Otherwise parameters are not sharded.
    zero.stage3_unit_classes = plugin.transformer_layer_cls_to_wrap;
  }
  if (plugin.auto_wrap_policy == AutoWrapPolicy::kSize) {
    constexpr int64_t kMost = int64_t{1} << 40;
    if (plugin.min_num_params < 1 || plugin.min_num_params > kMost) {
      throw ConfigError(
          "fsdp_plugin",
          fmt::format("min_num_params is {}; expected 1 to {}", plugin.min_num_params, kMost));
    }
    zero.bucket_cap_bytes = plugin.min_num_params * static_cast<int64_t>(sizeof(float));
  }
}

}  // namespace

std::optional<ZeroPlugin> FsdpPlugin::zero(int local_size) const {
  refuse_local_state_dict(state_dict_type, "fsdp_plugin");
  const ShardingStrategy strategy = strategy_of(*this);
  ZeroPlugin zero{.stage = fsdp::stage_of(strategy), .state_dict_type = state_dict_type};
  if (zero.stage == 0) {
    check_data_parallel(*this);
    return std::nullopt;
  }
  if (strategy == ShardingStrategy::kHybridShard) {
    if (local_size < 1) {
      throw ConfigError(
          "fsdp_plugin",
          "HYBRID_SHARD needs the same number of processes on each host, with consecutive ranks; "
          "try FULL_SHARD");
    }
    zero.zero_hpz_partition_size = local_size;
  }
  if (cpu_offload) {
    zero.offload_optimizer.device = OffloadDevice::kCpu;
    zero.offload_param.device = zero.stage == 3 ? OffloadDevice::kCpu : OffloadDevice::kNone;
  }
  zero.stage3_prefetch = backward_prefetch == BackwardPrefetch::kPre;
  set_units(*this, zero);
  return zero;
}

}  // namespace lockstep
