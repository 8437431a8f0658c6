// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/accelerator_options.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/ds_config/value_text.h"
#include "lockstep/precision/precision.h"

namespace lockstep {
namespace {

void set_precision(
    const ds_config::DsConfig& config,
    const std::shared_ptr<DynamicLossScale>& loss_scale,
    AcceleratorOptions& options) {
  switch (config.precision.value) {
    case FloatDtype::kFloat32:
      options.mixed_precision = Precision::kNo;
      break;
    case FloatDtype::kBfloat16:
      options.mixed_precision = Precision::kBF16;
      if (config.bf16.enabled.value && config.bf16.check_grad_overflow.value) {
        options.non_finite = NonFinitePolicy::kSkip;
      }
      break;
    case FloatDtype::kFloat16:
      options.mixed_precision = Precision::kFP16;
      if (loss_scale) {
        options.grad_scaler.init_scale = loss_scale->scale();
        options.loss_scale_rule = [loss_scale](bool overflowed) {
          return loss_scale->update(overflowed);
        };
      } else {
        const double fixed = config.fp16.loss_scale.value;
        options.grad_scaler.init_scale = fixed;
        options.loss_scale_rule = [fixed](bool) { return fixed; };
      }
      break;
  }
}

/// Drops the folder of a file that names one beside another device, which is only noted.
template <typename Offload>
void drop_unused_folder(Offload& offload) {
  if (offload.device != OffloadDevice::kNvme) {
    offload.nvme_path.clear();
  }
}

void set_16_bit_training(
    const ds_config::DsConfig& config, const TrainedModel& model, ZeroPlugin& plugin) {
  const ds_config::Bf16Section& bf16 = config.bf16;
  plugin.fp32_masters =
      !(config.fp16.master_weights_and_grads.value || bf16.master_weights_and_grads.value);
  const bool optimizer_refuses_fp32 = config.optimizer &&
                                      config.optimizer->parameters.has("fp32_optimizer_states") &&
                                      !config.optimizer->parameters.flag("fp32_optimizer_states");
  plugin.fp32_optimizer_states = !bf16.optimizer_states.value && !optimizer_refuses_fp32;
  if (const auto& sums = config.data_types.grad_accum_dtype;
      sums.value && model.has_16_bit_parameters) {
    plugin.grad_accum_dtype = sums.value;
    if (config.communication_data_type.value == FloatDtype::kFloat32 &&
        sums.value == FloatDtype::kFloat32) {
      plugin.communication_data_type = FloatDtype::kFloat32;
    }
  }
}

void set_communication_dtype(
    const ds_config::DsConfig& config, const TrainedModel& model, AcceleratorOptions& options) {
  const auto& dtype = config.communication_data_type;
  // With data_types.param_dtype, ds_config has checked that the two agree.
  const bool casts_parameters =
      config.data_types.param_dtype.value.value_or(FloatDtype::kFloat32) != FloatDtype::kFloat32;
  if (!dtype.value || casts_parameters) {
    return;
  }
  if (model.has_16_bit_parameters) {
    throw ConfigError(
        "initialize",
        fmt::format(
            "gradients of 16-bit parameters are sent in their dtype; got communication_data_type "
            "{} ({}); delete it, or set data_types.param_dtype",
            word_of(*dtype.value),
            dtype.origin.text));
  }
  if (*dtype.value == FloatDtype::kFloat32) {
    return;
  }
  if (options.zero) {
    options.zero->communication_data_type = dtype.value;
  } else {
    options.data_parallel.comm_hook.type =
        *dtype.value == FloatDtype::kFloat16 ? CommHookType::kFp16 : CommHookType::kBf16;
  }
}

}  // namespace

void set_zero_options(
    const ds_config::DsConfig& config, const TrainedModel& model, AcceleratorOptions& options) {
  ZeroPlugin plugin = config.zero.plugin;
  const bool shards_masters = model.shards_masters_in_stage_0(config);
  if (plugin.stage == 0 && !shards_masters) {
    // Without it LOCKSTEP_ZERO_STAGE would apply.
    options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 0};
    return;
  }
  if (shards_masters) {
    plugin.stage = 1;
  }
  plugin.stage3_prefetch = config.zero.prefetch_bucket_size.value > 0;
  drop_unused_folder(plugin.offload_optimizer);
  drop_unused_folder(plugin.offload_param);
  set_16_bit_training(config, model, plugin);
  options.grad_scaler.allow_fp16 = config.fp16.master_weights_and_grads.value;
  options.zero = plugin;
}

void check_no_option_of_ds_config(const AcceleratorOptions& given) {
  const AcceleratorOptions unset;
  const auto refuse_if = [](bool is_set, const char* option, const char* key) {
    if (is_set) {
      throw ConfigError(
          "initialize",
          fmt::format(
              "AcceleratorOptions::{} is set by the configuration file; omit it, and set {} in "
              "the file",
              option,
              key));
    }
  };
  refuse_if(given.mixed_precision.has_value(), "mixed_precision", "fp16.enabled or bf16.enabled");
  refuse_if(
      given.zero || given.fsdp_plugin || given.deepspeed_plugin,
      "zero, fsdp_plugin or deepspeed_plugin",
      "zero_optimization");
  refuse_if(
      given.gradient_accumulation_steps != unset.gradient_accumulation_steps ||
          given.gradient_accumulation_plugin,
      "gradient_accumulation_steps",
      "gradient_accumulation_steps");
  refuse_if(
      given.grad_scaler != unset.grad_scaler || given.loss_scale_rule,
      "grad_scaler or loss_scale_rule",
      "fp16.loss_scale, fp16.initial_scale_power and so on");
  refuse_if(
      !given.lower_precision_safe_modules.classes.empty(),
      "lower_precision_safe_modules",
      kSafeModulesKey);
  refuse_if(given.non_finite != unset.non_finite, "non_finite", "bf16.check_grad_overflow");
}

std::shared_ptr<DynamicLossScale> make_dynamic_loss_scale(const ds_config::DsConfig& config) {
  const ds_config::Fp16Section& fp16 = config.fp16;
  if (config.precision.value != FloatDtype::kFloat16 ||
      (fp16.enabled.value && fp16.loss_scale.value > 0)) {
    return nullptr;
  }
  if (!fp16.enabled.value) {  // torch_autocast: as torch's GradScaler, in every stage.
    return std::make_shared<DynamicLossScale>(DynamicLossScaleOptions{
        .loss_scale_window = 2000,
        .min_loss_scale = std::numeric_limits<double>::min(),
        .plain = true,
        .as_torch = true});
  }
  return std::make_shared<DynamicLossScale>(DynamicLossScaleOptions{
      .init_scale = std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power.value)),
      .loss_scale_window = fp16.loss_scale_window.value,
      .hysteresis = fp16.hysteresis.value,
      .consecutive_hysteresis = fp16.consecutive_hysteresis.value,
      .min_loss_scale = static_cast<double>(fp16.min_loss_scale.value),
      .plain = config.zero.plugin.stage == 0});
}

AcceleratorOptions accelerator_options(
    const ds_config::DsConfig& config,
    AcceleratorOptions given,
    const TrainedModel& model,
    const std::shared_ptr<DynamicLossScale>& loss_scale) {
  AcceleratorOptions options = std::move(given);
  options.expect_prepared_loader = false;  // DeepSpeed's programs bring loaders of their own.
  set_precision(config, loss_scale, options);
  set_zero_options(config, model, options);
  if (config.use_node_local_storage.value) {
    options.project_config.save_on_each_node = true;
  }
  const ds_config::AutocastSection& autocast = config.torch_autocast;
  if (const auto& modules = autocast.lower_precision_safe_modules.value) {
    options.lower_precision_safe_modules = {
        .classes = *modules, .dtype = scalar_type_of(*autocast.dtype.value)};
  }
  // An environment made for Accelerate's launcher must not count micro-steps a second time.
  options.gradient_accumulation_plugin =
      GradientAccumulationPlugin{.num_steps = 1, .sync_with_dataloader = false};
  set_communication_dtype(config, model, options);
  return options;
}

}  // namespace lockstep
