// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/shard.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/accelerator/zero_setup/dtypes.h"
#include "lockstep/accelerator/zero_setup/resolve_zero.h"
#include "lockstep/base/error.h"
#include "lockstep/base/memory/keep_memory.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/precision/precision.h"
#include "lockstep/zero/bucket/low_precision_policy.h"

namespace lockstep::internal {
namespace {

std::vector<std::vector<at::Tensor>> groups_of(torch::optim::Optimizer& optimizer) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& group : optimizer.param_groups()) {
    groups.push_back(group.params());
  }
  return groups;
}

std::vector<std::vector<optim::FlatOptimizer::BufferSlices>> slices_of(
    const zero::Sharding& sharding) {
  std::vector<std::vector<optim::FlatOptimizer::BufferSlices>> shard_slices;
  for (const auto& group : sharding.shards()) {
    auto& here = shard_slices.emplace_back();
    for (const zero::Shard& shard : group) {
      here.push_back({shard.values, shard.shard_slices, shard.file, shard.bounds});
    }
  }
  return shard_slices;
}

int64_t bucket_cap(const ZeroPlugin& plugin, const NamedTensors& parameters) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  if (plugin.reduce_bucket_size) {
    constexpr int64_t kMostElements = int64_t{1} << 50;  // More than any model has.
    const bool in_16_bits = std::ranges::any_of(parameters, [](const NamedTensor& item) {
      return zero::is_trained_in_16_bits(item.tensor);
    });
    return std::min(*plugin.reduce_bucket_size, kMostElements) * (in_16_bits ? 2 : 4);
  }
  if (plugin.bucket_cap_bytes || plugin.stage < 3) {
    return plugin.bucket_cap_bytes.value_or(25 * kMiB);
  }
  int64_t bytes = 0;
  for (const NamedTensor& item : parameters) {
    bytes += static_cast<int64_t>(item.tensor.nbytes());
  }
  return std::clamp(bytes / 16, kMiB, 25 * kMiB);
}

zero::PlusPlusOptions plus_plus(const ZeroPlugin& plugin, const RunContext& context) {
  if (!context.has_replicas()) {
    return {};  // Nothing is sent.
  }
  zero::PlusPlusOptions options{
      .quantized_weights = plugin.zero_quantized_weights,
      .quantized_frozen = plugin.zero_quantized_nontrainable_weights,
      .quantized_gradients = plugin.zero_quantized_gradients,
      .hpz_partition_size = std::max(1, static_cast<int>(plugin.zero_hpz_partition_size))};
  if (options.hpz_partition_size > 1) {
    options.host_size = options.hpz_partition_size;
  } else if (options.quantized_gradients) {
    options.host_size = uniform_host_size(context.world, context.group);
  }
  return options;
}

/// Returns where fp32 masters are stored: next to the optimizer state if all of it is offloaded,
/// else on the device.
OffloadParam offload_of_masters(const OffloadOptimizer& optimizer) {
  if (optimizer.ratio < 1) {
    return {};
  }
  return {
      .device = optimizer.device,
      .nvme_path = optimizer.nvme_path,
      .pin_memory = optimizer.pin_memory,
      .max_in_cpu = 0};
}

/// Returns the optimizer as a FlatOptimizer. Throws ConfigError for one that cannot update a shard.
optim::FlatOptimizer& flat_optimizer(Optimizer& optimizer, const ZeroPlugin& plugin) {
  auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer.inner());
  if (flat == nullptr) {
    throw ConfigError(
        "prepare",
        "ZeRO needs an optimizer of lockstep::optim, which can update a part of a parameter; got "
        "another");
  }
  if (plugin.offload_param.device != OffloadDevice::kNone &&
      plugin.offload_optimizer.device == OffloadDevice::kNone) {
    throw ConfigError(
        "prepare",
        "offload_param needs offload_optimizer, because only the host can update parameters off "
        "the device; got no offload_optimizer; set offload_optimizer.device to cpu or nvme");
  }
  return *flat;
}

bool trains_any(const NamedTensors& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const NamedTensor& item) {
    return item.tensor.requires_grad();
  });
}

/// Returns the experts, with the processes that have the same ones.
zero::SubgroupParameters subgroup_of(const RunContext& context, const PreparedModel& model) {
  if (!model.experts) {
    return {};
  }
  return {.parameters = tensors_of(model.experts->own), .group = context.mesh.expert_replicas};
}

zero::ShardingOptions sharding_options(const RunContext& context, const PreparedModel& model) {
  const ZeroPlugin& plugin = *context.options.zero;
  const NamedTensors parameters = model.parameters();
  const LowerPrecisionModules& modules = context.options.lower_precision_safe_modules;
  const std::optional<at::ScalarType> wire =
      reduced_comm_dtype(scalar_type_of(plugin.communication_data_type), modules);
  const int64_t cap_bytes = bucket_cap(plugin, parameters);
  return {
      .cap_bytes = cap_bytes,
      .first_cap_bytes = std::min(cap_bytes, zero::ShardingOptions().first_cap_bytes),
      .broadcast_buffers = context.options.data_parallel.broadcast_buffers,
      .units = units_of(parameters, model.classes(), plugin.stage3_unit_classes),
      .placement =
          plugin.stage == 3 ? zero::ParamPlacement::kSharded : zero::ParamPlacement::kReplicated,
      .model_communicates = !context.mesh.shape.is_data_parallel(),
      .param_persistence_threshold = plugin.stage3_param_persistence_threshold,
      .model_persistence_threshold = plugin.stage3_model_persistence_threshold,
      .coordinator =
          {.max_live_elements = plugin.stage3_max_live_parameters,
           .prefetch = plugin.stage3_prefetch},
      .plus_plus = plus_plus(plugin, context),
      .offload = plugin.offload_param,
      .offload_masters = offload_of_masters(plugin.offload_optimizer),
      .low_precision_policy = low_precision_policy(plugin),
      .comm_dtypes = wire ? all_in_comm_dtype(parameters, *wire)
                          : comm_dtypes(modules, parameters, model.classes()),
      .comm_dtypes_for_gradients_only = wire.has_value(),
      .subgroup = subgroup_of(context, model)};
}

/// Takes over the shards of models that zero_init built.
void transfer_zero_init(ZeroInit& zero_init, const PreparedModel& model, zero::Sharding& sharding) {
  std::vector<at::Tensor> tensors = tensors_of(model.parameters());
  const std::vector<at::Tensor> buffers = tensors_of(model.buffers());
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  zero_init.unshard(tensors);
  zero_init.transfer_to(sharding);
}

/// Returns whether something must be sharded now. Throws ConfigError unless it is the only model
/// and its only optimizer, or for inference a frozen model alone.
bool expect_one_model(const PreparedObjects& objects, const std::vector<Optimizer>& in_call) {
  const bool new_model = std::any_of(
      objects.models.begin(), objects.models.end(), [](const auto& model) { return !model.sync; });
  const bool new_optimizer = std::any_of(in_call.begin(), in_call.end(), [](const auto& optimizer) {
    return !optimizer.is_sharded();
  });
  if (!objects.uses_zero() || !(new_model || new_optimizer)) {
    return false;
  }
  const size_t models = objects.models.size();
  const size_t optimizers = objects.optimizers.size();
  const bool infers = objects.context.options.zero->stage == 3 && models == 1 && optimizers == 0 &&
                      !trains_any(objects.models.front().parameters());
  if (!infers && (models != 1 || optimizers != 1 || !new_model || !new_optimizer)) {
    throw ConfigError(
        "prepare",
        fmt::format(
            "ZeRO shards one model and its one optimizer, prepared in one call; got {} models and "
            "{} optimizers so far; call prepare(model, optimizer, ...), and use another "
            "Accelerator(options, first.world(), first.group()) for each further model{}",
            models,
            optimizers,
            optimizers == 0 ? ", or, for inference, use stage 3 and freeze the model" : ""));
  }
  return true;
}

}  // namespace

void shard_objects(
    PreparedObjects& objects, const std::vector<Optimizer>& in_call, ZeroInit& zero_init) {
  if (!expect_one_model(objects, in_call)) {
    return;
  }
  const RunContext& context = objects.context;
  const ZeroPlugin& plugin = *context.options.zero;
  PreparedModel& model = objects.models.front();
  optim::FlatOptimizer* const flat =
      objects.optimizers.empty() ? nullptr : &flat_optimizer(objects.optimizers.front(), plugin);
  check_sums(plugin, model.parameters());
  objects.sharding = std::make_shared<zero::Sharding>(
      model.parameters(),
      model.buffers(),
      flat == nullptr ? std::vector<std::vector<at::Tensor>>() : groups_of(*flat),
      context.mesh.replicas,
      sharding_options(context, model));
  zero::Sharding& sharding = *objects.sharding;
  if (plugin.state_dict_type == StateDictType::kFullStateDict && sharding.has_masters()) {
    throw ConfigError(
        "zero",
        "FULL_STATE_DICT saves parameters in their own dtype; got 16-bit parameters, whose fp32 "
        "masters would be lost; use SHARDED_STATE_DICT, and `lockstep merge-weights` for one file");
  }
  if (flat != nullptr) {
    flat->update_shards(
        slices_of(sharding),
        plugin.offload_optimizer,
        sharding.group(),
        plugin.fp32_optimizer_states);
    objects.optimizers.front().set_sharding(objects.sharding);
  }
  model.sync = objects.sharding;
  sharding.watch();
  transfer_zero_init(zero_init, model, sharding);
  release_freed_memory();  // The parameters' memory before sharding.
}

void share_parameters(const PreparedObjects& objects, const std::vector<Optimizer>& in_call) {
  if (!objects.context.options.shared_parameters || !objects.context.is_distributed()) {
    return;
  }
  const std::set<const void*> averaged = objects.parameters();
  for (const Optimizer& optimizer : in_call) {
    auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer.inner());
    if (flat == nullptr) {
      throw ConfigError(
          "prepare",
          "shared_parameters needs optimizers of lockstep::optim, which can update a part of a "
          "parameter; got another; use lockstep::optim's, or turn shared_parameters off");
    }
    for (const at::Tensor& parameter : optimizer.parameters()) {
      if (parameter.requires_grad() && !averaged.contains(parameter.unsafeGetTensorImpl())) {
        throw ConfigError(
            "prepare",
            "shared_parameters: an optimizer has parameters of a model that was not prepared, "
            "whose gradients would differ between processes; prepare the model before the "
            "optimizer or in the same call");
      }
    }
    if (!flat->is_shared()) {
      flat->share(objects.context.group);
      release_freed_memory();  // The parameters' memory before sharing.
    }
  }
}

}  // namespace lockstep::internal
