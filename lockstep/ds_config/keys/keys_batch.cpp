// SPDX-License-Identifier: Apache-2.0
// Keys of a step: batch sizes, optimizer, schedule, precision, gradients.
#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

void add_batch(std::vector<KeySpec>& keys) {
  keys.push_back(nullable(integer("train_batch_size", 1, "samples in an update, of all ranks")));
  keys.push_back(nullable(
      integer("train_micro_batch_size_per_gpu", 1, "samples in a micro-step, of one rank")));
  keys.push_back(nullable(integer("gradient_accumulation_steps", 1, "micro-steps in an update")));
  keys.push_back(stored<&DsConfig::managed_gradient_accumulation>(works(
      "managed_gradient_accumulation", KeyKind::kBoolean, "false: every step() is an update")));
  keys.push_back(stored<&DsConfig::dataloader_drop_last>(
      works("dataloader_drop_last", KeyKind::kBoolean, "drop an incomplete last batch")));
}

void add_optimizer(std::vector<KeySpec>& keys) {
  keys.push_back(works("optimizer", KeyKind::kSection, "absent: the program has its own"));
  keys.push_back(no_auto(
      works("optimizer.type", KeyKind::kText, "its name, in any case; see [below](#optimizers)")));
  keys.push_back(works("optimizer.params", KeyKind::kParams, "see [below](#optimizers)"));
  keys.push_back(ignored(
      "optimizer.legacy_fusion",
      KeyKind::kBoolean,
      "each optimizer has one implementation, which is fused"));
  keys.push_back(ignored(
      "zero_allow_untested_optimizer",
      KeyKind::kBoolean,
      "in Python an optimizer class of the program is tried on a small tensor; one that cannot "
      "update slices is refused by name, and true permits it on one rank"));
  keys.push_back(ignored(
      "zero_force_ds_cpu_optimizer",
      KeyKind::kBoolean,
      "all optimizers support the GPU and the host"));
  keys.push_back(works("scheduler", KeyKind::kSection, "absent: the program has its own, or none"));
  keys.push_back(
      no_auto(works("scheduler.type", KeyKind::kText, "its name; see [below](#schedules)")));
  keys.push_back(works("scheduler.params", KeyKind::kParams, "see [below](#schedules)"));
}

void add_fp16(std::vector<KeySpec>& keys) {
  keys.push_back(works("fp16", KeyKind::kSection, "computes in float16, with a scaled loss"));
  keys.push_back(no_auto(stored<&DsConfig::fp16, &Fp16Section::enabled>(
      works("fp16.enabled", KeyKind::kBoolean, "not together with bf16"))));
  keys.push_back(ignored(
      "fp16.auto_cast", KeyKind::kBoolean, "operations that compute in float16 cast their inputs"));
  keys.push_back(stored<&DsConfig::fp16, &Fp16Section::loss_scale>(
      {.path = "fp16.loss_scale",
       .kind = KeyKind::kNumber,
       .description = "the factor of the loss; 0: dynamic",
       .least = 0}));
  keys.push_back(stored<&DsConfig::fp16, &Fp16Section::initial_scale_power>(
      {.path = "fp16.initial_scale_power",
       .kind = KeyKind::kInteger,
       .description = "the initial scale is 2 to this power",
       .least = 0,
       .most = 127}));
  keys.push_back(stored<&DsConfig::fp16, &Fp16Section::loss_scale_window>(integer(
      "fp16.loss_scale_window", 1, "updates without an overflow after which the scale doubles")));
  keys.push_back(stored<&DsConfig::fp16, &Fp16Section::hysteresis>(
      integer("fp16.hysteresis", 1, "overflows until the scale halves")));
  keys.push_back(stored<&DsConfig::fp16, &Fp16Section::consecutive_hysteresis>(works(
      "fp16.consecutive_hysteresis",
      KeyKind::kBoolean,
      "restart the count of overflows after each update without one")));
  keys.push_back(stored<&DsConfig::fp16, &Fp16Section::min_loss_scale>(
      integer("fp16.min_loss_scale", 1, "an overflow at this scale ends the run")));
  keys.push_back(stored<&DsConfig::fp16, &Fp16Section::master_weights_and_grads>(works(
      "fp16.fp16_master_weights_and_grads",
      KeyKind::kBoolean,
      "float16 parameters without float32 masters; stages 1 to 3, Adam, offload_optimizer")));
}

void add_bf16(std::vector<KeySpec>& keys) {
  keys.push_back(works("bf16", KeyKind::kSection, "computes in bfloat16"));
  keys.push_back(other_name("bfloat16", KeyKind::kSection, "bf16"));
  keys.push_back(no_auto(stored<&DsConfig::bf16, &Bf16Section::enabled>(
      works("bf16.enabled", KeyKind::kBoolean, "not together with fp16"))));
  keys.push_back(stored<&DsConfig::bf16, &Bf16Section::check_grad_overflow>(works(
      "bf16.check_grad_overflow",
      KeyKind::kBoolean,
      "skip an update whose gradients are not finite")));
  keys.push_back(ignored(
      "bf16.immediate_grad_update",
      KeyKind::kBoolean,
      "gradients are accumulated as soon as they are computed"));
  keys.push_back(stored<&DsConfig::bf16, &Bf16Section::master_weights_and_grads>(works(
      "bf16.bf16_master_weights_and_grads",
      KeyKind::kBoolean,
      "bfloat16 parameters without float32 masters; stages 1 to 3; with Adam and "
      "offload_optimizer, or bf16_optimizer_states")));
  keys.push_back(stored<&DsConfig::bf16, &Bf16Section::optimizer_states>(works(
      "bf16.bf16_optimizer_states",
      KeyKind::kBoolean,
      "optimizer state is bfloat16; with bf16_master_weights_and_grads")));
  keys.push_back(works("torch_autocast", KeyKind::kSection, "another way to enable fp16 or bf16"));
  keys.push_back(no_auto(stored<&DsConfig::torch_autocast, &AutocastSection::enabled>(works(
      "torch_autocast.enabled",
      KeyKind::kBoolean,
      "together with fp16 or bf16 only of the same dtype"))));
  keys.push_back(nullable(stored<&DsConfig::torch_autocast, &AutocastSection::dtype>(
      {.path = "torch_autocast.dtype",
       .kind = KeyKind::kChoice,
       .description = "required if enabled; float16 and torch.float16 are fp16, bfloat16 and "
                      "torch.bfloat16 are bf16",
       .choices = {"fp16", "bf16", "float16", "bfloat16", "torch.float16", "torch.bfloat16"}})));
  keys.push_back(nullable(
      stored<&DsConfig::torch_autocast, &AutocastSection::lower_precision_safe_modules>(works(
          "torch_autocast.lower_precision_safe_modules",
          KeyKind::kTexts,
          "module classes (`torch.nn.Linear`, `torch::nn::LinearImpl`, `Linear`); gradients of "
          "their own parameters, and in stage 3 these parameters, are sent in "
          "torch_autocast.dtype; not set: none; DeepSpeed's default is Linear and Conv1d to "
          "Conv3d"))));
}

void add_data_types(std::vector<KeySpec>& keys) {
  keys.push_back(works("data_types", KeyKind::kSection, ""));
  keys.push_back(stored<&DsConfig::data_types, &DataTypesSection::grad_accum_dtype>(dtype(
      "data_types.grad_accum_dtype",
      "the dtype that accumulates gradients of 16-bit parameters: fp32, or the parameters'; not "
      "set: fp32 in stages 2 and 3, else the parameters'")));
  keys.push_back(stored<&DsConfig::data_types, &DataTypesSection::param_dtype>(dtype(
      "data_types.param_dtype",
      "initialize casts the parameters to it: fp32, or the dtype of fp16.enabled or bf16.enabled; "
      "not set: they are unchanged")));
  keys.push_back(stored<&DsConfig::data_types, &DataTypesSection::buffer_dtype>(dtype(
      "data_types.buffer_dtype",
      "initialize casts floating-point buffers to it; not set: they are unchanged")));
  keys.push_back(stored<&DsConfig::data_types, &DataTypesSection::keep_in_fp32_modules>(works(
      "data_types.keep_in_fp32_modules",
      KeyKind::kTexts,
      "buffers whose names contain one of these are float32; * matches any text")));
}

void add_gradients(std::vector<KeySpec>& keys) {
  keys.push_back(stored<&DsConfig::gradient_clipping>(
      {.path = "gradient_clipping",
       .kind = KeyKind::kNumber,
       .description = "largest norm of all gradients together; 0: no clipping",
       .least = 0}));
  const std::string no_overflow = "gradients are averaged in float32, which does not overflow";
  keys.push_back(ignored("prescale_gradients", KeyKind::kBoolean, no_overflow));
  keys.push_back(
      {.path = "gradient_predivide_factor",
       .kind = KeyKind::kNumber,
       .status = KeyStatus::kIgnored,
       .description = no_overflow,
       .least = std::numeric_limits<double>::min()});
  keys.push_back(stored<&DsConfig::gradient_allreduce_op>(
      {.path = "gradient_allreduce_op",
       .kind = KeyKind::kChoice,
       .description = "sum: gradients are added and not averaged; not in stage 3",
       .choices = {"mean", "sum"}}));
  keys.push_back(stored<&DsConfig::communication_data_type>(
      dtype("communication_data_type", "the communication dtype of gradients")));
  keys.push_back(ignored(
      "disable_allgather",
      KeyKind::kBoolean,
      "Lockstep always all-gathers buckets, and has no broadcast fallback"));
}

}  // namespace

std::vector<KeySpec> batch_and_precision_keys() {
  std::vector<KeySpec> keys;
  add_batch(keys);
  add_optimizer(keys);
  add_fp16(keys);
  add_bf16(keys);
  add_data_types(keys);
  add_gradients(keys);
  return keys;
}

}  // namespace lockstep::ds_config
