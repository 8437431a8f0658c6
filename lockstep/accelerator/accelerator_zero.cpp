// SPDX-License-Identifier: Apache-2.0
// ZeRO: parts of the training instead of copies of it.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/options/fsdp_environment.h"
#include "lockstep/accelerator/zero_setup/low_precision_policy.h"
#include "lockstep/accelerator/zero_setup/lower_precision.h"
#include "lockstep/accelerator/zero_setup/zero_units.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/memory/keep_memory.h"
#include "lockstep/flat/move_in_place.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/sync/reducer.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep {
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
  if (plugin.bucket_cap_bytes || plugin.stage < 3) {
    return plugin.bucket_cap_bytes.value_or(25 * kMiB);
  }
  int64_t bytes = 0;
  for (const NamedTensor& item : parameters) {
    bytes += static_cast<int64_t>(item.tensor.nbytes());
  }
  return std::clamp(bytes / 16, kMiB, 25 * kMiB);
}

/// Processes of a host, if all hosts have equally many, and these follow each other; else 0.
/// Collective.
int host_size(const WorldSpec& world, Group& group) {
  at::Tensor least = at::empty({3}, at::kLong);
  auto* values = least.mutable_data_ptr<int64_t>();
  values[0] = world.local_size;
  values[1] = -world.local_size;
  values[2] = world.rank % world.local_size == world.local_rank ? 1 : 0;
  group.all_reduce(least, ReduceOp::kMin).wait();
  return values[0] == -values[1] && values[2] == 1 ? world.local_size : 0;
}

zero::PlusPlusOptions plus_plus(const ZeroPlugin& plugin, const WorldSpec& world, Group& group) {
  if (group.size() == 1) {
    return {};  // Nothing travels.
  }
  zero::PlusPlusOptions options{
      .quantized_weights = plugin.zero_quantized_weights,
      .quantized_frozen = plugin.zero_quantized_nontrainable_weights,
      .quantized_gradients = plugin.zero_quantized_gradients,
      .hpz_partition_size = std::max(1, plugin.zero_hpz_partition_size)};
  if (options.hpz_partition_size > 1) {
    options.host_size = options.hpz_partition_size;
  } else if (options.quantized_gradients) {
    options.host_size = host_size(world, group);
  }
  return options;
}

/// Where fp32 masters lie: where all of the state does, else on the device.
OffloadParam with_the_state(const OffloadOptimizer& optimizer) {
  if (optimizer.ratio < 1) {
    return {};
  }
  return {
      .device = optimizer.device,
      .nvme_path = optimizer.nvme_path,
      .pin_memory = optimizer.pin_memory,
      .max_in_cpu = 0};
}

void check_offload(const ZeroPlugin& zero) {
  const OffloadOptimizer& optimizer = zero.offload_optimizer;
  const OffloadParam& param = zero.offload_param;
  const auto refuse = [](const std::string& what) { throw ConfigError("zero", what); };
  if (param.device != OffloadDevice::kNone && zero.stage != 3) {
    refuse(fmt::format(
        "offload_param moves what stage 3 divides; got stage {}, expected 3; use stage 3, or leave "
        "it out",
        zero.stage));
  }
  if (optimizer.super_offload && param.device == OffloadDevice::kNvme) {
    refuse(
        "offload_optimizer.super_offload updates parameters that lie in memory early; got "
        "offload_param.device nvme, expected cpu or none; leave one of them out");
  }
  if (param.device != OffloadDevice::kNone && optimizer.ratio < 1) {
    refuse(fmt::format(
        "a part of the update can stay on the device where the parameters do; got offload_param, "
        "and offload_optimizer.ratio={}, expected 1; leave one of them out",
        optimizer.ratio));
  }
  if (param.device != OffloadDevice::kNone && zero.zero_quantized_nontrainable_weights) {
    refuse(
        "zero_quantized_nontrainable_weights keeps frozen parameters in 8 bits on the device; got "
        "offload_param, too, which has them off it as they are; leave one of them out");
  }
  for (const auto& [name, device, path] :
       {std::tuple("offload_optimizer", optimizer.device, optimizer.nvme_path),
        std::tuple("offload_param", param.device, param.nvme_path)}) {
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

/// Returns it as a FlatOptimizer. ConfigError for one that cannot update a part of a parameter.
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
        "parameters off the device can only be updated on the host; got an optimizer, "
        "offload_param and no offload_optimizer, expected both; set offload_optimizer.device to "
        "cpu or nvme, too");
  }
  return *flat;
}

/// By LOCKSTEP_ZERO_STAGE, or else by what `accelerate launch --use_fsdp` sets. Collective.
std::optional<ZeroPlugin> launched_zero(const WorldSpec& world, Group& group) {
  const Environment environment = Environment::process();
  if (const auto stage = environment.integer("LOCKSTEP_ZERO_STAGE", 0, 3)) {
    return *stage == 0 ? std::nullopt
                       : std::optional(ZeroPlugin{.stage = static_cast<int>(*stage)});
  }
  const FsdpEnvironment fsdp = read_fsdp_environment(environment);
  if (world.rank == 0) {
    for (const std::string& variable : fsdp.not_used) {
      log_warning("not used: " + variable);
    }
  }
  return fsdp.plugin ? fsdp.plugin->zero(host_size(world, group)) : std::nullopt;
}

bool trains_any(const NamedTensors& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const NamedTensor& item) {
    return item.tensor.requires_grad();
  });
}

}  // namespace

bool Accelerator::is_sharded() const {
  const std::optional<ZeroPlugin>& zero = state_->options.zero;
  return zero.has_value() && (use_distributed() || zero->offloads() || state_->trains_in_16_bits);
}

void Accelerator::refuse_zero(const char* where, const char* because) const {
  if (is_sharded()) {
    throw ConfigError(
        where,
        fmt::format(
            "does not go with ZeRO: {}; construct the Accelerator without, and launch without "
            "--zero-stage",
            because));
  }
}

/// However it was said.
void Accelerator::choose_zero() {
  AcceleratorOptions& options = state_->options;
  const int given =
      (options.zero ? 1 : 0) + (options.fsdp_plugin ? 1 : 0) + (options.deepspeed_plugin ? 1 : 0);
  if (given > 1) {
    throw ConfigError(
        "accelerator",
        "zero, fsdp_plugin and deepspeed_plugin all say how the model is divided; give one");
  }
  if (options.fsdp_plugin) {
    options.zero = options.fsdp_plugin->zero(host_size(state_->world, state_->group));
  } else if (options.deepspeed_plugin) {
    options.zero = options.deepspeed_plugin->zero();
  } else if (!options.zero) {
    options.zero = launched_zero(state_->world, state_->group);
  }
}

void Accelerator::check_zero() const {
  const AcceleratorOptions& options = state_->options;
  if (!options.zero) {
    return;
  }
  if (options.zero->stage < 1 || options.zero->stage > 3) {
    throw ConfigError(
        "zero",
        fmt::format(
            "no such stage; got {}, expected 1, 2 or 3; leave zero unset for data parallel",
            options.zero->stage));
  }
  refuse_local_state_dict(options.zero->state_dict_type, "zero");
  if (options.zero->stage3_max_live_parameters.value_or(0) < 0 ||
      options.zero->stage3_param_persistence_threshold < 0 ||
      options.zero->stage3_model_persistence_threshold < 0) {
    throw ConfigError(
        "zero",
        fmt::format(
            "numbers of elements cannot be negative; got stage3_max_live_parameters={}, "
            "stage3_param_persistence_threshold={}, stage3_model_persistence_threshold={}",
            options.zero->stage3_max_live_parameters.value_or(0),
            options.zero->stage3_param_persistence_threshold,
            options.zero->stage3_model_persistence_threshold));
  }
  const ZeroPlugin& zero = *options.zero;
  if (zero.stage < 3 &&
      (zero.zero_quantized_weights || zero.zero_quantized_gradients ||
       zero.zero_quantized_nontrainable_weights || zero.zero_hpz_partition_size > 1)) {
    throw ConfigError(
        "zero",
        fmt::format(
            "ZeRO++ (zero_quantized_weights, zero_quantized_gradients, zero_hpz_partition_size, "
            "zero_quantized_nontrainable_weights) changes how stage 3 sends; got stage {}, "
            "expected 3; try stage 3, or leave them out",
            zero.stage));
  }
  if (zero.stage < 3 && !zero.stage3_unit_classes.empty()) {
    throw ConfigError(
        "zero",
        fmt::format(
            "stage3_unit_classes says which parameters come and go together; got stage {}, where "
            "none do; leave it out, or use stage 3",
            zero.stage));
  }
  const int partition = zero.zero_hpz_partition_size;
  if (partition < 0 || (partition > 1 && is_sharded() && num_processes() % partition != 0)) {
    throw ConfigError(
        "zero",
        fmt::format(
            "processes cannot be divided into groups that keep second copies; got "
            "zero_hpz_partition_size={}, expected a divisor of {}; try the number of processes of "
            "a host, or 1 for none",
            partition,
            num_processes()));
  }
  check_offload(zero);
  if (options.shared_parameters) {
    throw ConfigError(
        "zero",
        "does not go with shared_parameters, of which each host has one copy anyway; leave it out, "
        "or zero and --zero-stage");
  }
  if (options.data_parallel.comm_hook.type != CommHookType::kNone) {
    throw ConfigError(
        "zero",
        fmt::format(
            "does not go with the comm hook {}, which compresses all-reduces; leave it out, or "
            "zero "
            "and --zero-stage",
            name_of(options.data_parallel.comm_hook.type)));
  }
}

std::shared_ptr<void> Accelerator::begin_zero_init() {
  State& state = *state_;
  if (!is_sharded() || state.options.zero->stage < 3) {
    return nullptr;
  }
  constexpr int64_t kMinElements = 4096;  // A message for less is not worth it.
  state.inits.push_back(std::make_unique<zero::Init>(state.group, device(), kMinElements));
  return std::make_shared<zero::InitInterceptScope>(*state.inits.back());
}

void Accelerator::finish_zero_init(const NamedTensors& tensors) {
  state_->inits.back()->shard(tensors_of(tensors));  // What was not when it was made.
  state_->inits.back()->finish();
  // Not when they are made: small ones are filled through pointers, as torch::tensor does.
  flat::move_in_place(tensors_of(tensors), device());
  if (state_->is_sharded_param()) {
    state_->hand_over_inits();
  }
}

/// To the pager that training has: ranks that serve it must bring what others touch here, too.
void Accelerator::State::hand_over_inits() {
  for (const auto& init : inits) {
    for (zero::Init::ReleasedUnit& left : init->release()) {
      sharding->manage(std::move(left.unit), std::move(left.name));
    }
  }
  inits.clear();
}

void Accelerator::with_gathered_parameters(
    const std::vector<at::Tensor>& parameters,
    const std::function<void()>& body,
    std::optional<int> modifier_rank) {
  if (modifier_rank && (*modifier_rank < 0 || *modifier_rank >= num_processes())) {
    throw ConfigError(
        "with_gathered_parameters",
        fmt::format(
            "no such modifier_rank; got {}, expected 0 to {}",
            *modifier_rank,
            num_processes() - 1));
  }
  const zero::ExactValues exact(state_->sharding ? state_->sharding->coordinator() : nullptr);
  const zero::Gathered gathered(parameters, modifier_rank.has_value());
  body();
  if (modifier_rank) {
    const c10::AutoGradMode no_grad(false);
    for (const at::Tensor& parameter : parameters) {
      // By way of a tensor that is not paged, which transports read through pointers.
      at::Tensor values = parameter.detach().clone(at::MemoryFormat::Contiguous);
      state_->group.broadcast(values, *modifier_rank).wait();
      parameter.detach().copy_(values);
    }
    state_->accumulation_check.forget();
  }
}

void Accelerator::shard_parameters() {
  State& state = *state_;
  const bool new_model = std::any_of(
      state.models.begin(), state.models.end(), [](const auto& model) { return !model.sync; });
  const bool new_optimizer = std::any_of(
      state.optimizers_in_call.begin(), state.optimizers_in_call.end(), [](const auto& optimizer) {
        return !optimizer.is_sharded();
      });
  if (!is_sharded() || !(new_model || new_optimizer)) {
    return;
  }
  // Without anything to train stage 3 is inference, which has no optimizer.
  const bool infers = state.options.zero->stage == 3 && state.models.size() == 1 &&
                      state.optimizers.empty() && !trains_any(state.models.front().parameters());
  if (!infers &&
      (state.models.size() != 1 || state.optimizers.size() != 1 || !new_model || !new_optimizer)) {
    throw ConfigError(
        "prepare",
        fmt::format(
            "ZeRO divides one model and its one optimizer, and must know both at once; got {} "
            "models and {} optimizers so far; prepare(model, optimizer, ...) in one call, and give "
            "each further model an Accelerator(options, first.world(), first.group()) of its own{}",
            state.models.size(),
            state.optimizers.size(),
            state.optimizers.empty() ? ", or, for inference, use stage 3 and freeze the model"
                                     : ""));
  }
  State::Model& model = state.models.front();
  const ZeroPlugin& plugin = *state.options.zero;
  optim::FlatOptimizer* const flat =
      infers ? nullptr : &flat_optimizer(state.optimizers.front(), plugin);
  check_sums(plugin, model.parameters());
  const LowerPrecisionModules& told = state.options.lower_precision_safe_modules;
  const std::optional<at::ScalarType> wire = narrow_wire(plugin.communication_data_type, told);
  const int64_t cap_bytes = bucket_cap(plugin, model.parameters());
  state.sharding = std::make_shared<zero::Sharding>(
      model.parameters(),
      model.buffers(),
      flat == nullptr ? std::vector<std::vector<at::Tensor>>() : groups_of(*flat),
      state.group,
      zero::ShardingOptions{
          .cap_bytes = cap_bytes,
          .first_cap_bytes = std::min(cap_bytes, zero::ShardingOptions().first_cap_bytes),
          .broadcast_buffers = state.options.data_parallel.broadcast_buffers,
          .units = units_of(model.parameters(), model.classes(), plugin.stage3_unit_classes),
          .placement = plugin.stage == 3 ? zero::ParamPlacement::kSharded
                                         : zero::ParamPlacement::kReplicated,
          .param_persistence_threshold = plugin.stage3_param_persistence_threshold,
          .model_persistence_threshold = plugin.stage3_model_persistence_threshold,
          .coordinator =
              {.max_live_elements = plugin.stage3_max_live_parameters,
               .prefetch = plugin.stage3_prefetch},
          .plus_plus = plus_plus(plugin, state.world, state.group),
          .offload = plugin.offload_param,
          .offload_masters = with_the_state(plugin.offload_optimizer),
          .low_precision_policy = low_precision_policy(plugin),
          .comm_dtypes = wire ? all_narrow(model.parameters(), *wire)
                              : comm_dtypes(told, model.parameters(), model.classes()),
          .comm_dtypes_for_gradients_only = wire.has_value()});
  if (plugin.state_dict_type == StateDictType::kFullStateDict && state.sharding->has_masters()) {
    throw ConfigError(
        "zero",
        "FULL_STATE_DICT saves parameters as they are; got some in 16 bits, whose fp32 masters "
        "would be lost; use SHARDED_STATE_DICT, of which `lockstep merge-weights` makes one file");
  }
  if (flat != nullptr) {
    flat->update_shards(
        slices_of(*state.sharding),
        plugin.offload_optimizer,
        state.sharding->group(),
        plugin.fp32_optimizer_states);
    state.optimizers.front().set_sharding(state.sharding);
  }
  model.sync = state.sharding;
  state.sharding->watch();
  std::vector<at::Tensor> tensors = tensors_of(model.parameters());
  const std::vector<at::Tensor> buffers = tensors_of(model.buffers());
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  for (const auto& init : state.inits) {
    init->make_full(tensors);
  }
  state.hand_over_inits();
  release_freed_memory();  // Where parameters were before.
}

}  // namespace lockstep
