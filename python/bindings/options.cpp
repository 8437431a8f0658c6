// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/options.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/enum_words.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"
#include "lockstep/zero_options/fsdp_table.h"
#include "lockstep/zero_options/zero_rows.h"

namespace lockstep::python {
namespace {

constexpr const char* kWhere = "Accelerator";

/// Returns the values of an enum by their words.
template <typename E>
std::map<std::string, E> values_of() {
  std::map<std::string, E> values;
  for (size_t i = 0; i < kWordsOf<E>.size(); ++i) {
    values.emplace(kWordsOf<E>[i], static_cast<E>(i));
  }
  return values;
}

/// Throws ConfigError for a name that is neither "fp32" nor a 16-bit precision.
FloatDtype dtype_of(const std::string& name) {
  if (name == "fp32") {
    return FloatDtype::kFloat32;
  }
  const at::ScalarType dtype = autocast_dtype(parse_precision(name));
  return dtype == at::kHalf ? FloatDtype::kFloat16 : FloatDtype::kBfloat16;
}

/// Copies a dict whose values may be dicts: {"a": {"b": 1}} becomes {"a.b": 1}.
void flatten(const py::dict& values, const std::string& prefix, py::dict& flat) {
  for (const auto& [name, value] : values) {
    const std::string path = prefix + name.cast<std::string>();
    if (py::isinstance<py::dict>(value)) {
      flatten(py::reinterpret_borrow<py::dict>(value), path + ".", flat);
    } else {
      flat[py::str(path)] = value;
    }
  }
}

/// Reads the values of a dict into the members of a struct. Throws ConfigError for the names that
/// no `read` has asked for.
class DictReader {
 public:
  DictReader(const py::dict& values, std::string what) : values_(values), what_(std::move(what)) {}

  template <typename T>
  void read(const char* name, T& target) {
    if constexpr (std::is_enum_v<T>) {
      read_enum(name, target, values_of<T>());
    } else {
      read_with(name, [&](py::handle value) { target = value.cast<T>(); });
    }
  }
  void read(const char* name, std::filesystem::path& target) { read_path(name, target); }
  void read(const char* name, std::optional<FloatDtype>& target) {
    read_with(name, [&](py::handle value) { target = dtype_of(value.cast<std::string>()); });
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
  template <typename Path>
  void read_path(const char* name, Path& target) {
    read_with(name, [&](py::handle value) { target = value.cast<std::string>(); });
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
  /// Reads a dict with the options of one section, by `read_options` of the section's type.
  template <typename Section, typename Target>
  void read_section(const char* name, const char* what, Target& target) {
    read_with(name, [&](py::handle value) {
      Section section;
      read_all(value.cast<py::dict>(), what, section);
      target = std::move(section);
    });
  }
  template <typename Section>
  static void read_all(const py::dict& values, const char* what, Section& section) {
    DictReader reader(values, what);
    read_options(reader, section);
    reader.end();
  }

 private:
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

  py::dict values_;
  std::string what_;
  py::list names_;
  size_t used_ = 0;
};

void read_options(DictReader& reader, GradScalerOptions& options) {
  reader.read("init_scale", options.init_scale);
  reader.read("growth_factor", options.growth_factor);
  reader.read("backoff_factor", options.backoff_factor);
  reader.read("growth_interval", options.growth_interval);
  reader.read("enabled", options.enabled);
}

void read_options(DictReader& reader, GradientAccumulationPlugin& plugin) {
  reader.read("num_steps", plugin.num_steps);
  reader.read("adjust_scheduler", plugin.adjust_scheduler);
  reader.read("sync_with_dataloader", plugin.sync_with_dataloader);
  reader.read("sync_each_batch", plugin.sync_each_batch);
  reader.read("rescale_short_group", plugin.rescale_short_group);
}

void read_options(DictReader& reader, ProjectConfiguration& project) {
  std::optional<std::string> logging_dir;
  reader.read("logging_dir", logging_dir);
  project.logging_dir = logging_dir.value_or("");
  reader.read("automatic_checkpoint_naming", project.automatic_checkpoint_naming);
  reader.read("total_limit", project.total_limit);
  reader.read("iteration", project.iteration);
  reader.read("save_on_each_node", project.save_on_each_node);
  reader.read("checkpointing_steps", project.checkpointing_steps);
  reader.read("async_checkpointing", project.async_checkpointing);
}

void read_options(DictReader& reader, DataParallelOptions& options) {
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
}

void read_options(DictReader& reader, ZeroPlugin& zero) {
  visit_zero_options(zero, [&](const char* name, auto& target, const ZeroRule& /*rule*/) {
    reader.read(name, target);
  });
}

void read_options(DictReader& reader, FsdpPlugin& plugin) {
  std::map<std::string, ShardingStrategy> strategies;
  for (const fsdp::Word& word : fsdp::kStrategyWords) {
    strategies.emplace(word.text, static_cast<ShardingStrategy>(word.value));
  }
  reader.read_enum("sharding_strategy", plugin.sharding_strategy, strategies);
  reader.read("reshard_after_forward", plugin.reshard_after_forward);
  std::map<std::string, AutoWrapPolicy> policies;
  for (const fsdp::Word& word : fsdp::kWrapWords) {
    policies.emplace(lower(std::string(word.text)), static_cast<AutoWrapPolicy>(word.value));
  }
  reader.read_enum("auto_wrap_policy", plugin.auto_wrap_policy, policies);
  reader.read("min_num_params", plugin.min_num_params);
  reader.read("transformer_cls_names_to_wrap", plugin.transformer_layer_cls_to_wrap);
  reader.read_enum(
      "backward_prefetch",
      plugin.backward_prefetch,
      {{"BACKWARD_PRE", BackwardPrefetch::kPre}, {"NO_PREFETCH", BackwardPrefetch::kNone}});
  reader.read("cpu_offload", plugin.cpu_offload);
  reader.read("state_dict_type", plugin.state_dict_type);
}

void read_options(DictReader& reader, DeepSpeedPlugin& plugin) {
  reader.read("zero_stage", plugin.zero_stage);
  reader.read("gradient_accumulation_steps", plugin.gradient_accumulation_steps);
  reader.read("offload_optimizer_device", plugin.offload_optimizer_device);
  reader.read("offload_param_device", plugin.offload_param_device);
  reader.read_path("offload_optimizer_nvme_path", plugin.offload_optimizer_nvme_path);
  reader.read_path("offload_param_nvme_path", plugin.offload_param_nvme_path);
}

void read_options(DictReader& reader, AcceleratorOptions& options) {
  reader.read("cpu", options.cpu);
  reader.read("device_placement", options.device_placement);
  reader.read_with("mixed_precision", [&](py::handle value) {
    options.mixed_precision = parse_precision(value.cast<std::string>());
  });
  reader.read("autocast_enabled", options.autocast.enabled);
  reader.read("autocast_cache_enabled", options.autocast.cache_enabled);
  reader.read_section<GradScalerOptions>("grad_scaler", "GradScalerKwargs", options.grad_scaler);
  reader.read("gradient_accumulation_steps", options.gradient_accumulation_steps);
  reader.read_section<GradientAccumulationPlugin>(
      "gradient_accumulation_plugin",
      "GradientAccumulationPlugin",
      options.gradient_accumulation_plugin);
  reader.read("step_scheduler_with_optimizer", options.step_scheduler_with_optimizer);
  reader.read("debug", options.debug);
  reader.read_with("mesh", [&](py::handle value) {
    options.mesh = parse_mesh(value.cast<std::string>(), "Accelerator");
  });
  reader.read("split_batches", options.split_batches);
  reader.read("even_batches", options.even_batches);
  reader.read("expect_prepared_loader", options.expect_prepared_loader);
  reader.read("expect_equal_passes", options.expect_equal_passes);
  std::vector<std::string> trackers;
  reader.read("log_with", trackers);
  for (std::string& tracker : trackers) {
    options.log_with.emplace_back(std::move(tracker));
  }
  reader.read_path("project_dir", options.project_dir);
  reader.read("project_name", options.project_name);
  reader.read_section<ProjectConfiguration>(
      "project_config", "ProjectConfiguration", options.project_config);
  reader.read("save_when_preempted", options.save_when_preempted);
  reader.read_section<DataParallelOptions>(
      "data_parallel", "DistributedDataParallelKwargs", options.data_parallel);
  reader.read_with("zero", [&](py::handle value) {
    py::dict flat;
    flatten(value.cast<py::dict>(), "", flat);
    DictReader::read_all(flat, "ZeroPlugin", options.zero.emplace());
  });
  reader.read_section<FsdpPlugin>(
      "fsdp_plugin", "FullyShardedDataParallelPlugin", options.fsdp_plugin);
  reader.read_section<DeepSpeedPlugin>(
      "deepspeed_plugin", "DeepSpeedPlugin", options.deepspeed_plugin);
  reader.read("shared_parameters", options.shared_parameters);
  reader.read("non_finite", options.non_finite);
}

}  // namespace

std::vector<std::string> fsdp_words(const std::string& member) {
  std::vector<std::string> words;
  for (const fsdp::Option& option : fsdp::kOptions) {
    if (option.member == member) {
      for (const fsdp::Word& word : option.words) {
        words.emplace_back(word.text);
      }
    }
  }
  return words;
}

AcceleratorOptions accelerator_options(const py::dict& values) {
  AcceleratorOptions options;
  options.scheduler_steps = SchedulerSteps::kAccelerate;
  DictReader::read_all(values, "Accelerator", options);
  return options;
}

}  // namespace lockstep::python
