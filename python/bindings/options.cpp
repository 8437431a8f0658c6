// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/options.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::python {
namespace {

constexpr const char* kWhere = "Accelerator";

/// Reads the values of a dict into the members of a struct. Throws ConfigError for the names that
/// no `read` has asked for.
class DictReader {
 public:
  DictReader(const py::dict& values, std::string what) : values_(values), what_(std::move(what)) {}

  template <typename T>
  void read(const char* name, T& target) {
    read_with(name, [&](py::handle value) { target = value.cast<T>(); });
  }
  template <typename T>
  void read_enum(const char* name, T& target, const std::map<std::string, T>& values) {
    read_with(name, [&](py::handle value) {
      const auto text = value.cast<std::string>();
      const auto found = values.find(text);
      if (found == values.end()) {
        std::string all;
        for (const auto& [known, unused] : values) {
          all += (all.empty() ? "" : ", ") + known;
        }
        throw ConfigError(
            kWhere, fmt::format("invalid value '{}' for {}; expected one of {}", text, name, all));
      }
      target = found->second;
    });
  }
  void read_with(const char* name, const std::function<void(py::handle)>& use) {
    if (!values_.contains(name)) {
      return;
    }
    ++used_;
    const py::object value = values_[name];
    try {
      use(value);
    } catch (const py::cast_error&) {
      throw ConfigError(
          kWhere,
          fmt::format("invalid value {} for {} of {}", std::string(py::repr(value)), name, what_));
    }
    names_.append(name);
  }
  void end() const {
    if (used_ == values_.size()) {
      return;
    }
    for (const auto& [name, value] : values_) {
      if (!names_.contains(name)) {
        throw ConfigError(
            kWhere, fmt::format("{} has no option '{}'", what_, std::string(py::str(name))));
      }
    }
  }

 private:
  py::dict values_;
  std::string what_;
  py::list names_;
  size_t used_ = 0;
};

std::map<std::string, OffloadDevice> offload_devices() {
  return {
      {"none", OffloadDevice::kNone}, {"cpu", OffloadDevice::kCpu}, {"nvme", OffloadDevice::kNvme}};
}

GradScalerOptions grad_scaler_options(const py::dict& values) {
  GradScalerOptions options;
  DictReader reader(values, "GradScalerKwargs");
  reader.read("init_scale", options.init_scale);
  reader.read("growth_factor", options.growth_factor);
  reader.read("backoff_factor", options.backoff_factor);
  reader.read("growth_interval", options.growth_interval);
  reader.read("enabled", options.enabled);
  reader.end();
  return options;
}

GradientAccumulationPlugin accumulation_plugin(const py::dict& values) {
  GradientAccumulationPlugin plugin;
  DictReader reader(values, "GradientAccumulationPlugin");
  reader.read("num_steps", plugin.num_steps);
  reader.read("adjust_scheduler", plugin.adjust_scheduler);
  reader.read("sync_with_dataloader", plugin.sync_with_dataloader);
  reader.read("sync_each_batch", plugin.sync_each_batch);
  reader.end();
  return plugin;
}

ProjectConfiguration project_configuration(const py::dict& values) {
  ProjectConfiguration project;
  DictReader reader(values, "ProjectConfiguration");
  std::optional<std::string> logging_dir;
  reader.read("logging_dir", logging_dir);
  project.logging_dir = logging_dir.value_or("");
  reader.read("automatic_checkpoint_naming", project.automatic_checkpoint_naming);
  reader.read("total_limit", project.total_limit);
  reader.read("iteration", project.iteration);
  reader.read("save_on_each_node", project.save_on_each_node);
  reader.read("checkpointing_steps", project.checkpointing_steps);
  reader.read("async_checkpointing", project.async_checkpointing);
  reader.end();
  return project;
}

DataParallelOptions data_parallel_options(const py::dict& values) {
  DataParallelOptions options;
  DictReader reader(values, "DistributedDataParallelKwargs");
  reader.read("cap_bytes", options.cap_bytes);
  reader.read("broadcast_buffers", options.broadcast_buffers);
  const std::map<std::string, CommHookType> hooks = {
      {"no", CommHookType::kNone},
      {"fp16", CommHookType::kFp16},
      {"bf16", CommHookType::kBf16},
      {"power_sgd", CommHookType::kPowerSgd},
      {"batched_power_sgd", CommHookType::kBatchedPowerSgd}};
  reader.read_enum("comm_hook", options.comm_hook.type, hooks);
  reader.read_enum("comm_wrapper", options.comm_hook.wrapper, hooks);
  reader.read("use_error_feedback", options.comm_hook.use_error_feedback);
  PowerSgdOptions& power = options.comm_hook.power_sgd;
  reader.read("matrix_approximation_rank", power.matrix_approximation_rank);
  reader.read("start_powerSGD_iter", power.start_iter);
  reader.read("min_compression_rate", power.min_compression_rate);
  reader.read("warm_start", power.warm_start);
  reader.read("orthogonalization_epsilon", power.orthogonalization_epsilon);
  reader.read("random_seed", power.seed);
  reader.end();
  return options;
}

OffloadOptimizer offload_optimizer(const py::dict& values) {
  OffloadOptimizer offload;
  DictReader reader(values, "offload_optimizer");
  reader.read_enum("device", offload.device, offload_devices());
  std::string folder;
  reader.read("nvme_path", folder);
  offload.nvme_path = folder;
  reader.read("ratio", offload.ratio);
  reader.read("super_offload", offload.super_offload);
  reader.end();
  return offload;
}

OffloadParam offload_param(const py::dict& values) {
  OffloadParam offload;
  DictReader reader(values, "offload_param");
  reader.read_enum("device", offload.device, offload_devices());
  std::string folder;
  reader.read("nvme_path", folder);
  offload.nvme_path = folder;
  reader.end();
  return offload;
}

ZeroPlugin zero_plugin(const py::dict& values) {
  ZeroPlugin zero;
  DictReader reader(values, "ZeroPlugin");
  reader.read("stage", zero.stage);
  reader.read("bucket_cap_bytes", zero.bucket_cap_bytes);
  reader.read("stage3_max_live_parameters", zero.stage3_max_live_parameters);
  reader.read("stage3_param_persistence_threshold", zero.stage3_param_persistence_threshold);
  reader.read("stage3_prefetch", zero.stage3_prefetch);
  reader.read("stage3_unit_classes", zero.stage3_unit_classes);
  reader.read_enum(
      "state_dict_type",
      zero.state_dict_type,
      {{"SHARDED_STATE_DICT", StateDictType::kShardedStateDict},
       {"FULL_STATE_DICT", StateDictType::kFullStateDict},
       {"LOCAL_STATE_DICT", StateDictType::kLocalStateDict}});
  reader.read("zero_quantized_weights", zero.zero_quantized_weights);
  reader.read("zero_quantized_gradients", zero.zero_quantized_gradients);
  reader.read("zero_hpz_partition_size", zero.zero_hpz_partition_size);
  reader.read_with("offload_optimizer", [&](py::handle value) {
    zero.offload_optimizer = offload_optimizer(value.cast<py::dict>());
  });
  reader.read_with("offload_param", [&](py::handle value) {
    zero.offload_param = offload_param(value.cast<py::dict>());
  });
  reader.read("fp32_masters", zero.fp32_masters);
  reader.end();
  return zero;
}

FsdpPlugin fsdp_plugin(const py::dict& values) {
  FsdpPlugin fsdp;
  DictReader reader(values, "FullyShardedDataParallelPlugin");
  reader.read_enum(
      "sharding_strategy",
      fsdp.sharding_strategy,
      {{"FULL_SHARD", ShardingStrategy::kFullShard},
       {"SHARD_GRAD_OP", ShardingStrategy::kShardGradOp},
       {"NO_SHARD", ShardingStrategy::kNoShard},
       {"HYBRID_SHARD", ShardingStrategy::kHybridShard},
       {"HYBRID_SHARD_ZERO2", ShardingStrategy::kHybridShardZero2}});
  reader.read("reshard_after_forward", fsdp.reshard_after_forward);
  reader.read_enum(
      "auto_wrap_policy",
      fsdp.auto_wrap_policy,
      {{"no_wrap", AutoWrapPolicy::kNone},
       {"size_based_wrap", AutoWrapPolicy::kSize},
       {"transformer_based_wrap", AutoWrapPolicy::kTransformer}});
  reader.read("min_num_params", fsdp.min_num_params);
  reader.read("transformer_cls_names_to_wrap", fsdp.transformer_layer_cls_to_wrap);
  reader.read_enum(
      "backward_prefetch",
      fsdp.backward_prefetch,
      {{"BACKWARD_PRE", BackwardPrefetch::kPre}, {"NO_PREFETCH", BackwardPrefetch::kNone}});
  reader.read("cpu_offload", fsdp.cpu_offload);
  reader.read_enum(
      "state_dict_type",
      fsdp.state_dict_type,
      {{"SHARDED_STATE_DICT", StateDictType::kShardedStateDict},
       {"FULL_STATE_DICT", StateDictType::kFullStateDict},
       {"LOCAL_STATE_DICT", StateDictType::kLocalStateDict}});
  reader.end();
  return fsdp;
}

DeepSpeedPlugin deepspeed_plugin(const py::dict& values) {
  DeepSpeedPlugin plugin;
  DictReader reader(values, "DeepSpeedPlugin");
  reader.read("zero_stage", plugin.zero_stage);
  reader.read("gradient_accumulation_steps", plugin.gradient_accumulation_steps);
  reader.read_enum("offload_optimizer_device", plugin.offload_optimizer_device, offload_devices());
  reader.read_enum("offload_param_device", plugin.offload_param_device, offload_devices());
  std::string folder;
  reader.read("offload_optimizer_nvme_path", folder);
  plugin.offload_optimizer_nvme_path = folder;
  folder.clear();
  reader.read("offload_param_nvme_path", folder);
  plugin.offload_param_nvme_path = folder;
  reader.end();
  return plugin;
}

}  // namespace

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") {
    return at::kFloat;
  }
  return autocast_dtype(parse_precision(name));
}

AcceleratorOptions accelerator_options(const py::dict& values) {
  AcceleratorOptions options;
  options.scheduler_steps = SchedulerSteps::kAccelerate;
  DictReader reader(values, "Accelerator");
  reader.read("cpu", options.cpu);
  reader.read("device_placement", options.device_placement);
  reader.read_with("mixed_precision", [&](py::handle value) {
    options.mixed_precision = parse_precision(value.cast<std::string>());
  });
  reader.read("autocast_enabled", options.autocast.enabled);
  reader.read("autocast_cache_enabled", options.autocast.cache_enabled);
  reader.read_with("grad_scaler", [&](py::handle value) {
    options.grad_scaler = grad_scaler_options(value.cast<py::dict>());
  });
  reader.read("gradient_accumulation_steps", options.gradient_accumulation_steps);
  reader.read_with("gradient_accumulation_plugin", [&](py::handle value) {
    options.gradient_accumulation_plugin = accumulation_plugin(value.cast<py::dict>());
  });
  reader.read("step_scheduler_with_optimizer", options.step_scheduler_with_optimizer);
  reader.read("debug", options.debug);
  reader.read("split_batches", options.split_batches);
  reader.read("even_batches", options.even_batches);
  std::vector<std::string> trackers;
  reader.read("log_with", trackers);
  for (std::string& tracker : trackers) {
    options.log_with.emplace_back(std::move(tracker));
  }
  std::string folder;
  reader.read("project_dir", folder);
  options.project_dir = folder;
  reader.read("project_name", options.project_name);
  reader.read_with("project_config", [&](py::handle value) {
    options.project_config = project_configuration(value.cast<py::dict>());
  });
  reader.read("save_when_preempted", options.save_when_preempted);
  reader.read_with("data_parallel", [&](py::handle value) {
    options.data_parallel = data_parallel_options(value.cast<py::dict>());
  });
  reader.read_with(
      "zero", [&](py::handle value) { options.zero = zero_plugin(value.cast<py::dict>()); });
  reader.read_with("fsdp_plugin", [&](py::handle value) {
    options.fsdp_plugin = fsdp_plugin(value.cast<py::dict>());
  });
  reader.read_with("deepspeed_plugin", [&](py::handle value) {
    options.deepspeed_plugin = deepspeed_plugin(value.cast<py::dict>());
  });
  reader.read("shared_parameters", options.shared_parameters);
  reader.read_enum(
      "non_finite",
      options.non_finite,
      {{"ignore", NonFinitePolicy::kIgnore},
       {"skip", NonFinitePolicy::kSkip},
       {"stop", NonFinitePolicy::kStop}});
  reader.end();
  return options;
}

}  // namespace lockstep::python
