// SPDX-License-Identifier: Apache-2.0
// How an engine is made: what the file says, in the Accelerator's words.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/accelerator/setup/either_variable.h"
#include "lockstep/accelerator/zero_setup/lower_precision.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/ds_config/keys/described_values.h"
#include "lockstep/ds_config/value_text.h"
#include "lockstep/engine/engine_core.h"
#include "lockstep/engine/offload_options.h"
#include "lockstep/engine/setup/cast_model.h"
#include "lockstep/engine/setup/config_document.h"
#include "lockstep/engine/setup/init_distributed.h"
#include "lockstep/engine/setup/make_optimizer.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep {
namespace {

constexpr const char* kSafeModules = "torch_autocast.lower_precision_safe_modules";

config::Document document_of(const InitializeOptions& options) {
  const std::filesystem::path& argument = options.args.deepspeed_config;
  if (!argument.empty() && !(options.config.empty() && options.config_json.empty())) {
    throw ConfigError(
        "initialize",
        fmt::format(
            "got a configuration from the program, and --deepspeed_config {} on the command line; "
            "give one",
            argument.string()));
  }
  if (!argument.empty()) {
    return ds_config::read_ds_document(argument);
  }
  if (options.config.empty() && options.config_json.empty()) {
    // `lockstep launch --deepspeed-config-file FILE`.
    if (const auto file = either_text(Environment::process(), "DEEPSPEED_CONFIG_FILE")) {
      return ds_config::read_ds_document(*file);
    }
    throw ConfigError(
        "initialize",
        "needs a configuration; give `config`, a file, or `config_json`, or launch with "
        "--deepspeed-config-file, or pass what add_config_arguments finds as `args`");
  }
  if (!options.config.empty() && !options.config_json.empty()) {
    throw ConfigError("initialize", "got both `config` and `config_json`; give one");
  }
  if (!options.config.empty()) {
    return ds_config::read_ds_document(options.config);
  }
  return config::parse_document(
      "config_json", plain_config_text(options.config_json), config::Format::kCommentedJson);
}

LogLevel log_level_of(const std::string& word) {
  return word == "debug"     ? LogLevel::kDebug
         : word == "warning" ? LogLevel::kWarning
         : word == "error"   ? LogLevel::kError
                             : LogLevel::kInfo;
}

std::string dumped(const ds_config::DsConfig& config) {
  std::string text = "the engine's configuration:";
  for (const ds_config::DescribedValue& each : ds_config::described_values(config)) {
    text += fmt::format("\n  {} = {} ({})", each.path, ds_config::text_of(each.value), each.origin);
  }
  return text;
}

/// `tensors` by the names that they have in a model; those of others have none.
NamedTensors named_among(const NamedTensors& all, const std::vector<at::Tensor>& tensors) {
  NamedTensors named;
  for (const at::Tensor& tensor : tensors) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const NamedTensor& item) {
      return item.tensor.is_same(tensor);
    });
    named.push_back({found == all.end() ? "" : found->name, tensor});
  }
  return named;
}

/// Null where the file asks for nothing.
std::shared_ptr<ActivationCheckpointing> checkpointing_of(
    const ds_config::ActivationCheckpointingSection& section) {
  const ActivationCheckpointingOptions options{
      .cpu_checkpointing = section.cpu_checkpointing.value,
      .contiguous_memory_optimization = section.contiguous_memory_optimization.value,
      .number_checkpoints = section.number_checkpoints.value,
      .synchronize_checkpoint_boundary = section.synchronize_checkpoint_boundary.value,
      .profile = section.profile.value};
  const bool any = options.cpu_checkpointing || options.contiguous_memory_optimization ||
                   options.synchronize_checkpoint_boundary || options.profile;
  return any ? std::make_shared<ActivationCheckpointing>(options) : nullptr;
}

}  // namespace

EngineCore::EngineCore(
    InitializeOptions options,
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const NamedClasses& modules)
    : given_(std::move(options)) {
  // First the file: where it is wrong no rank waits for the others.
  const int size = given_.connected ? given_.connected->world.size : world_to_connect().size;
  config_ = ds_config::resolve_ds_config(document_of(given_), size);
  gradient_accumulation_steps_ = config_.batch.gradient_accumulation_steps.value;
  micro_batch_size_ = config_.batch.train_micro_batch_size_per_gpu.value;
  activation_checkpointing_ = checkpointing_of(config_.activation_checkpointing);
  check_overlap(given_.accelerator);
  if (const auto& narrow = config_.torch_autocast.lower_precision_safe_modules; narrow.value) {
    check_lower_precision(*narrow.value, parameters, modules, narrow.origin.text, kSafeModules);
  }
  cast_model(parameters, buffers, model_dtypes(config_.data_types));
  make_given_optimizer(parameters);
  freeze_without_optimizer(parameters);
  narrow_ = (config_.fp16.enabled.value || config_.bf16.enabled.value) &&
            any_trained_in_16_bits(parameters);
  AcceleratorOptions ours = accelerator_options(given_.accelerator);
  if (!given_.connected) {
    given_.connected = connected_once(given_.accelerator.connect);
  }
  Group group = given_.connected->group;
  if (const ds_config::CommsLoggerSection& comms = config_.comms_logger; comms.enabled.value) {
    CommsLogOptions log{.verbose = comms.verbose.value, .with_shapes = comms.debug.value};
    if (!comms.prof_all.value) {
      log.operations = {comms.prof_ops.value.begin(), comms.prof_ops.value.end()};
    }
    comms_log_ = std::make_shared<CommsLog>(std::move(log));
    group = logged(group, comms_log_);
  }
  accelerator_ =
      std::make_unique<Accelerator>(std::move(ours), given_.connected->world, std::move(group));
  if (config_.log_level.value) {
    LogOptions log = LogOptions::from_environment();
    log.level = log_level_of(*config_.log_level.value);
    set_log_options(log);
  }
  report_ = std::make_unique<StepReport>(config_, accelerator_->is_main_process());
  if (config_.dump_state.value && accelerator_->is_main_process()) {
    log_info(dumped(config_));
  }
  register_hooks();
}

/// Stage 3 without an optimizer is inference: nothing is trained.
void EngineCore::freeze_without_optimizer(const NamedTensors& parameters) const {
  if (given_.optimizer || config_.optimizer || config_.zero.stage.value != 3) {
    return;
  }
  for (const NamedTensor& item : parameters) {
    item.tensor.requires_grad_(false);
  }
}

/// From here on it is as if the program had given the optimizer itself.
void EngineCore::make_given_optimizer(const NamedTensors& parameters) {
  const auto refuse = [](const char* name, const char* other) {
    throw ConfigError("initialize", fmt::format("got both `{}` and `{}`; give one", name, other));
  };
  if (given_.lr_scheduler && given_.make_lr_scheduler) {
    refuse("lr_scheduler", "make_lr_scheduler");
  }
  if (!given_.make_optimizer) {
    return;
  }
  if (given_.optimizer) {
    refuse("optimizer", "make_optimizer");
  }
  std::vector<at::Tensor> trained = given_.model_parameters;
  if (trained.empty()) {
    for (const NamedTensor& item : parameters) {
      if (item.tensor.requires_grad()) {
        trained.push_back(item.tensor);
      }
    }
  }
  given_.optimizer = std::exchange(given_.make_optimizer, nullptr)(trained);
  if (!given_.optimizer) {
    throw ConfigError("initialize", "make_optimizer returned no optimizer; let it return one");
  }
}

void EngineCore::check_overlap(const AcceleratorOptions& given) const {
  const AcceleratorOptions unset;
  const auto refuse = [](const char* option, const char* key) {
    throw ConfigError(
        "initialize",
        fmt::format(
            "AcceleratorOptions::{} is for the configuration file to say, as {}; leave it out",
            option,
            key));
  };
  if (given.mixed_precision) {
    refuse("mixed_precision", "fp16.enabled or bf16.enabled");
  }
  if (given.zero || given.fsdp_plugin || given.deepspeed_plugin) {
    refuse("zero, fsdp_plugin or deepspeed_plugin", "zero_optimization");
  }
  if (given.gradient_accumulation_steps != unset.gradient_accumulation_steps ||
      given.gradient_accumulation_plugin) {
    refuse("gradient_accumulation_steps", "gradient_accumulation_steps");
  }
  if (given.grad_scaler != unset.grad_scaler || given.loss_scale_rule) {
    refuse("grad_scaler or loss_scale_rule", "fp16.loss_scale, fp16.initial_scale_power and so on");
  }
  if (!given.lower_precision_safe_modules.classes.empty()) {
    refuse("lower_precision_safe_modules", kSafeModules);
  }
  if (given.non_finite != unset.non_finite) {
    refuse("non_finite", "bf16.check_grad_overflow");
  }
}

AcceleratorOptions EngineCore::accelerator_options(AcceleratorOptions given) {
  AcceleratorOptions options = std::move(given);
  set_precision(options);
  set_zero(options);
  if (config_.use_node_local_storage.value) {
    options.project_config.save_on_each_node = true;
  }
  saves_on_each_host_ = options.project_config.save_on_each_node;
  const ds_config::AutocastSection& autocast = config_.torch_autocast;
  if (const auto& modules = autocast.lower_precision_safe_modules.value) {
    options.lower_precision_safe_modules = {
        .classes = *modules, .dtype = scalar_type_of(*autocast.dtype.value)};
  }
  // An environment made for Accelerate's launcher must not count micro-steps a second time.
  options.gradient_accumulation_plugin =
      GradientAccumulationPlugin{.num_steps = 1, .sync_with_dataloader = false};
  const auto& wire = config_.communication_data_type;
  // Those of 16-bit parameters travel as the file says, or it is refused.
  const bool narrowed = config_.data_types.param_dtype.value.value_or(ds_config::Dtype::kFloat32) !=
                        ds_config::Dtype::kFloat32;
  if (wire.value && !narrowed && (narrow_ || *wire.value != ds_config::Dtype::kFloat32)) {
    if (narrow_) {
      throw ConfigError(
          "initialize",
          fmt::format(
              "gradients of 16-bit parameters are sent in their dtype; got communication_data_type "
              "{} ({}); delete it, or set data_types.param_dtype",
              ds_config::word_of(*wire.value),
              wire.origin.text));
    }
    if (options.zero) {
      options.zero->communication_data_type = scalar_type_of(*wire.value);
    } else {
      options.data_parallel.comm_hook.type =
          *wire.value == ds_config::Dtype::kFloat16 ? CommHookType::kFp16 : CommHookType::kBf16;
    }
  }
  return options;
}

void EngineCore::set_precision(AcceleratorOptions& options) {
  switch (config_.precision.value) {
    case ds_config::Dtype::kFloat32:
      options.mixed_precision = Precision::kNo;
      break;
    case ds_config::Dtype::kBfloat16:
      options.mixed_precision = Precision::kBF16;
      if (config_.bf16.enabled.value && config_.bf16.check_grad_overflow.value) {
        options.non_finite = NonFinitePolicy::kSkip;
      }
      break;
    case ds_config::Dtype::kFloat16: {
      options.mixed_precision = Precision::kFP16;
      const ds_config::Fp16Section& fp16 = config_.fp16;
      if (fp16.enabled.value && fp16.loss_scale.value > 0) {
        const double fixed = fp16.loss_scale.value;
        options.grad_scaler.init_scale = fixed;
        options.loss_scale_rule = [fixed](bool) { return fixed; };
        break;
      }
      loss_scale_ = std::make_shared<DynamicLossScale>(DynamicLossScaleOptions{
          .init_scale = std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power.value)),
          .loss_scale_window = fp16.loss_scale_window.value,
          .hysteresis = fp16.hysteresis.value,
          .consecutive_hysteresis = fp16.consecutive_hysteresis.value,
          .min_loss_scale = static_cast<double>(fp16.min_loss_scale.value),
          .plain = stage() == 0});
      options.grad_scaler.init_scale = loss_scale_->scale();
      options.loss_scale_rule = [scale = loss_scale_](bool overflowed) {
        return scale->update(overflowed);
      };
      break;
    }
  }
}

void EngineCore::set_low_precision_policy(AcceleratorOptions& options, ZeroPlugin& plugin) const {
  const ds_config::Fp16Section& fp16 = config_.fp16;
  const ds_config::Bf16Section& bf16 = config_.bf16;
  plugin.fp32_masters =
      !(fp16.master_weights_and_grads.value || bf16.master_weights_and_grads.value);
  const bool told = config_.optimizer && config_.optimizer->parameters.has("fp32_optimizer_states");
  plugin.fp32_optimizer_states =
      !bf16.optimizer_states.value &&
      !(told && !config_.optimizer->parameters.flag("fp32_optimizer_states"));
  options.grad_scaler.allow_fp16 = fp16.master_weights_and_grads.value;
  if (const auto& sums = config_.data_types.grad_accum_dtype; sums.value && narrow_) {
    plugin.grad_accum_dtype = scalar_type_of(*sums.value);
    if (config_.communication_data_type.value == ds_config::Dtype::kFloat32 &&
        sums.value == ds_config::Dtype::kFloat32) {
      plugin.communication_data_type = at::kFloat;
    }
  }
  plugin.load_from_fp32_weights = config_.zero.load_from_fp32_weights.value;
}

void EngineCore::set_zero(AcceleratorOptions& options) const {
  const ds_config::ZeroSection& zero = config_.zero;
  if (zero.stage.value == 0 && !divides_masters()) {
    // Else LOCKSTEP_ZERO_STAGE would count.
    options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 0};
    return;
  }
  ZeroPlugin plugin{.stage = divides_masters() ? 1 : static_cast<int>(zero.stage.value)};
  set_low_precision_policy(options, plugin);
  if (zero.reduce_bucket_size.value) {
    constexpr int64_t kMostElements = int64_t{1} << 50;  // More than any model has.
    const int64_t element_bytes = narrow_ ? 2 : 4;
    plugin.bucket_cap_bytes =
        std::min(*zero.reduce_bucket_size.value, kMostElements) * element_bytes;
  }
  plugin.stage3_max_live_parameters = zero.max_live_parameters.value;
  plugin.stage3_param_persistence_threshold = zero.param_persistence_threshold.value;
  plugin.stage3_model_persistence_threshold = zero.model_persistence_threshold.value;
  plugin.stage3_prefetch = zero.prefetch_bucket_size.value > 0;
  plugin.zero_quantized_weights = zero.quantized_weights.value;
  plugin.zero_quantized_gradients = zero.quantized_gradients.value;
  plugin.zero_quantized_nontrainable_weights = zero.quantized_nontrainable_weights.value;
  plugin.zero_hpz_partition_size = static_cast<int>(zero.hpz_partition_size.value);
  set_offloads(zero, plugin);
  options.zero = plugin;
}

std::shared_ptr<torch::optim::Optimizer> EngineCore::optimizer_of(NamedTensors parameters) {
  if (given_.optimizer) {
    if (divides_masters() &&
        dynamic_cast<optim::FlatOptimizer*>(given_.optimizer.get()) == nullptr) {
      throw ConfigError(
          "initialize",
          "16-bit parameters are updated as float32 masters, of which each rank has a part in "
          "stage 0, too; got an optimizer that needs whole ones, expected one of lockstep::optim; "
          "or keep the parameters in float32");
    }
    return given_.optimizer;
  }
  if (!config_.optimizer) {
    return nullptr;
  }
  if (!given_.model_parameters.empty()) {
    parameters = named_among(parameters, given_.model_parameters);
  }
  std::erase_if(parameters, [](const NamedTensor& item) { return !item.tensor.requires_grad(); });
  return make_optimizer(*config_.optimizer, parameters, given_.mup_shapes);
}

void EngineCore::start(
    Optimizer optimizer,
    std::function<std::vector<at::Tensor>()> parameters,
    std::function<ModuleTree()> modules) {
  has_optimizer_ = optimizer != Optimizer();
  optimizer_ = std::move(optimizer);
  parameters_ = std::move(parameters);
  modules_ = std::move(modules);
  given_.optimizer.reset();
  given_.model_parameters.clear();
  given_.mup_shapes.clear();
  if (has_optimizer_) {
    accelerator_->watch_unknown_backwards([core = weak_from_this()] {
      if (const auto self = core.lock()) {
        self->judge_unknown_backward();
      }
    });
    accelerator_->set_ends_update([core = weak_from_this()] {
      const auto self = core.lock();
      return self && self->is_gradient_accumulation_boundary();
    });
  }
  has_scheduler_ = given_.lr_scheduler || given_.make_lr_scheduler || config_.scheduler;
  if (has_scheduler_ && !has_optimizer_) {
    throw ConfigError(
        "initialize", "got a scheduler, and no optimizer for it; add one to either of them");
  }
  if (given_.make_lr_scheduler) {
    given_.lr_scheduler = std::exchange(given_.make_lr_scheduler, nullptr)(optimizer_.inner());
  }
  if (given_.lr_scheduler) {
    goes_by_metric_ =
        std::holds_alternative<schedule::ReduceOnPlateauOptions>(*given_.lr_scheduler);
    scheduler_ = std::visit(
        [&](const auto& schedule) { return accelerator_->prepare(schedule); },
        *given_.lr_scheduler);
  } else if (config_.scheduler) {
    scheduler_ = accelerator_->prepare(*config_.scheduler->schedule);
  }
}

data::LoaderOptions EngineCore::loader_options() const {
  return {
      .batch_size = micro_batch_size_,
      .shuffle = true,
      .drop_last = config_.dataloader_drop_last.value};
}

}  // namespace lockstep
