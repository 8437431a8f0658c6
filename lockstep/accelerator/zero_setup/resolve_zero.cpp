// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/zero_setup/resolve_zero.h"

#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/accelerator/options/fsdp_environment.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

/// The source of ZeRO's settings: FSDP's options, which are translated for a host size, or others.
struct RequestedZero {
  std::optional<FsdpPlugin> fsdp;
  ResolvedZero resolved;  ///< Without `fsdp`.
};

RequestedZero requested_zero(const AcceleratorOptions& options, const Environment& environment) {
  const int given =
      (options.zero ? 1 : 0) + (options.fsdp_plugin ? 1 : 0) + (options.deepspeed_plugin ? 1 : 0);
  if (given > 1) {
    throw ConfigError(
        "accelerator",
        "zero, fsdp_plugin and deepspeed_plugin all configure sharding; give only one");
  }
  if (options.fsdp_plugin) {
    return {.fsdp = options.fsdp_plugin, .resolved = {}};
  }
  if (options.deepspeed_plugin) {
    return {
        .fsdp = std::nullopt,
        .resolved = {.plugin = options.deepspeed_plugin->zero(), .not_used = {}}};
  }
  if (options.zero) {
    return {.fsdp = std::nullopt, .resolved = {.plugin = options.zero, .not_used = {}}};
  }
  if (const auto stage = environment.integer("LOCKSTEP_ZERO_STAGE", 0, 3)) {
    RequestedZero requested;
    if (*stage > 0) {
      requested.resolved.plugin = ZeroPlugin{.stage = static_cast<int>(*stage)};
    }
    return requested;
  }
  FsdpEnvironment launched = read_fsdp_environment(environment);
  return {
      .fsdp = std::move(launched.plugin),
      .resolved = {.plugin = std::nullopt, .not_used = std::move(launched.not_used)}};
}

void check_ranges(const ZeroPlugin& zero) {
  if (zero.stage < 1 || zero.stage > 3) {
    throw ConfigError(
        "zero",
        fmt::format(
            "no such stage; got {}, expected 1, 2 or 3; leave zero unset for data parallel",
            zero.stage));
  }
  refuse_local_state_dict(zero.state_dict_type, "zero");
  if (zero.reduce_bucket_size && (zero.bucket_cap_bytes || *zero.reduce_bucket_size < 1)) {
    throw ConfigError(
        "zero",
        fmt::format(
            "reduce_bucket_size is the elements of the largest bucket; got {}{}; set it to at "
            "least 1, or only bucket_cap_bytes",
            *zero.reduce_bucket_size,
            zero.bucket_cap_bytes ? " and bucket_cap_bytes" : ""));
  }
  if (zero.stage3_max_live_parameters.value_or(0) < 0 ||
      zero.stage3_param_persistence_threshold < 0 || zero.stage3_model_persistence_threshold < 0) {
    throw ConfigError(
        "zero",
        fmt::format(
            "numbers of elements cannot be negative; got stage3_max_live_parameters={}, "
            "stage3_param_persistence_threshold={}, stage3_model_persistence_threshold={}",
            zero.stage3_max_live_parameters.value_or(0),
            zero.stage3_param_persistence_threshold,
            zero.stage3_model_persistence_threshold));
  }
}

/// Refuses options of stage 3 in other stages.
void check_stage(const ZeroPlugin& zero) {
  if (zero.stage == 3) {
    return;
  }
  if (zero.zero_quantized_weights || zero.zero_quantized_gradients ||
      zero.zero_quantized_nontrainable_weights || zero.zero_hpz_partition_size > 1) {
    throw ConfigError(
        "zero",
        fmt::format(
            "ZeRO++ (zero_quantized_weights, zero_quantized_gradients, zero_hpz_partition_size, "
            "zero_quantized_nontrainable_weights) changes how stage 3 communicates; got stage {}, "
            "expected 3; try stage 3, or leave them out",
            zero.stage));
  }
  if (!zero.stage3_unit_classes.empty()) {
    throw ConfigError(
        "zero",
        fmt::format(
            "stage3_unit_classes lists modules whose parameters stage 3 unshards together; got "
            "stage {}, expected 3; leave it out, or use stage 3",
            zero.stage));
  }
}

void check_partition(const ZeroPlugin& zero, int processes) {
  const int partition = zero.zero_hpz_partition_size;
  const bool is_sharded = processes > 1 || zero.offloads();
  if (partition < 0 || (partition > 1 && is_sharded && processes % partition != 0)) {
    throw ConfigError(
        "zero",
        fmt::format(
            "the processes cannot be divided into groups of zero_hpz_partition_size; got "
            "zero_hpz_partition_size={}, expected a divisor of {}; try the number of processes of "
            "a host, or 1 for none",
            partition,
            processes));
  }
}

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError("zero", what);
}

void check_offload_param(const ZeroPlugin& zero) {
  const OffloadOptimizer& optimizer = zero.offload_optimizer;
  const OffloadParam& param = zero.offload_param;
  if (param.device != OffloadDevice::kNone && zero.stage != 3) {
    refuse(fmt::format(
        "offload_param moves the parameters that stage 3 shards; got stage {}, expected 3; use "
        "stage 3, or leave it out",
        zero.stage));
  }
  if (optimizer.super_offload && param.device == OffloadDevice::kNvme) {
    refuse(
        "offload_optimizer.super_offload updates parameters in memory; got offload_param.device "
        "nvme, expected cpu or none; remove one of them");
  }
  if (param.device != OffloadDevice::kNone && optimizer.ratio < 1) {
    refuse(fmt::format(
        "offload_optimizer.ratio below 1 keeps a part of the update on the device, so it cannot be "
        "combined with offload_param; got ratio={}; set it to 1, or remove offload_param",
        optimizer.ratio));
  }
  if (param.device != OffloadDevice::kNone && zero.zero_quantized_nontrainable_weights) {
    refuse(
        "zero_quantized_nontrainable_weights keeps frozen parameters in 8 bits on the device; got "
        "offload_param, too, which keeps them off the device in their own dtype; set only one of "
        "them");
  }
}

void check_offload_folders(const ZeroPlugin& zero) {
  for (const auto& [name, device, path] :
       {std::tuple(
            "offload_optimizer", zero.offload_optimizer.device, zero.offload_optimizer.nvme_path),
        std::tuple("offload_param", zero.offload_param.device, zero.offload_param.nvme_path)}) {
    if (device == OffloadDevice::kNvme && path.empty()) {
      refuse(fmt::format(
          "{0}.device nvme needs a folder for its files; got no {0}.nvme_path; set it to one on a "
          "fast disk",
          name));
    }
    if (device != OffloadDevice::kNvme && !path.empty()) {
      refuse(fmt::format(
          "{0}.nvme_path is for the device nvme; got '{1}' and another device; set {0}.device to "
          "nvme, or leave the path out",
          name,
          path.string()));
    }
  }
}

/// Throws ConfigError for options that cannot be combined with ZeRO.
void check_other_options(const AcceleratorOptions& options) {
  if (options.shared_parameters) {
    throw ConfigError(
        "zero",
        "ZeRO cannot be combined with shared_parameters, which already keeps one copy on each "
        "host; turn shared_parameters off, or remove zero and --zero-stage");
  }
  if (options.data_parallel.comm_hook.type != CommHookType::kNone) {
    throw ConfigError(
        "zero",
        fmt::format(
            "ZeRO cannot be combined with the comm hook {}, which compresses all-reduces; remove "
            "the hook, or zero and --zero-stage",
            name_of(options.data_parallel.comm_hook.type)));
  }
}

}  // namespace

ResolvedZero resolve_zero(
    const AcceleratorOptions& options, const Environment& environment, const ZeroFacts& facts) {
  RequestedZero requested = requested_zero(options, environment);
  ResolvedZero resolved = std::move(requested.resolved);
  if (requested.fsdp) {
    resolved.plugin = requested.fsdp->zero(facts.host_size);
  }
  if (resolved.plugin) {
    check_ranges(*resolved.plugin);
    check_stage(*resolved.plugin);
    check_partition(*resolved.plugin, facts.processes);
    check_offload_param(*resolved.plugin);
    check_offload_folders(*resolved.plugin);
    check_other_options(options);
  }
  return resolved;
}

bool needs_host_size(const AcceleratorOptions& options, const Environment& environment) {
  return requested_zero(options, environment).fsdp.has_value();
}

int uniform_host_size(const WorldSpec& world, Group group) {
  at::Tensor least = at::empty({3}, at::kLong);
  auto* values = least.mutable_data_ptr<int64_t>();
  values[0] = world.local_size;
  values[1] = -world.local_size;
  values[2] = world.rank % world.local_size == world.local_rank ? 1 : 0;
  group.all_reduce(least, ReduceOp::kMin).wait();
  return values[0] == -values[1] && values[2] == 1 ? world.local_size : 0;
}

}  // namespace lockstep
