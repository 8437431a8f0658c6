// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/ds_config/ds_config.h"

namespace lockstep::ds_config {

/// Calls `visit(path, field)` for each field of a DsConfig, const or not, whose value is that of
/// one key: reading, printing and the table of keys go through it, so that none forgets one. Those
/// that are found out in other ways are not among them: the batch sizes, optimizer, scheduler and
/// precision. Every path is one of the table's (key_table.h).
template <typename Config, typename Visit>
void visit_fields(Config& config, const Visit& visit) {
  visit("managed_gradient_accumulation", config.managed_gradient_accumulation);
  visit("dataloader_drop_last", config.dataloader_drop_last);
  visit("fp16.enabled", config.fp16.enabled);
  visit("fp16.loss_scale", config.fp16.loss_scale);
  visit("fp16.initial_scale_power", config.fp16.initial_scale_power);
  visit("fp16.loss_scale_window", config.fp16.loss_scale_window);
  visit("fp16.hysteresis", config.fp16.hysteresis);
  visit("fp16.consecutive_hysteresis", config.fp16.consecutive_hysteresis);
  visit("fp16.min_loss_scale", config.fp16.min_loss_scale);
  visit("fp16.fp16_master_weights_and_grads", config.fp16.master_weights_and_grads);
  visit("bf16.enabled", config.bf16.enabled);
  visit("bf16.check_grad_overflow", config.bf16.check_grad_overflow);
  visit("bf16.bf16_master_weights_and_grads", config.bf16.master_weights_and_grads);
  visit("bf16.bf16_optimizer_states", config.bf16.optimizer_states);
  visit("torch_autocast.enabled", config.torch_autocast.enabled);
  visit("torch_autocast.dtype", config.torch_autocast.dtype);
  visit(
      "torch_autocast.lower_precision_safe_modules",
      config.torch_autocast.lower_precision_safe_modules);
  visit("data_types.grad_accum_dtype", config.data_types.grad_accum_dtype);
  visit("data_types.param_dtype", config.data_types.param_dtype);
  visit("data_types.buffer_dtype", config.data_types.buffer_dtype);
  visit("data_types.keep_in_fp32_modules", config.data_types.keep_in_fp32_modules);
  visit("gradient_clipping", config.gradient_clipping);
  visit("gradient_allreduce_op", config.gradient_allreduce_op);
  visit("communication_data_type", config.communication_data_type);

  auto& zero = config.zero;
  visit("zero_optimization.stage", zero.stage);
  visit("zero_optimization.reduce_bucket_size", zero.reduce_bucket_size);
  visit("zero_optimization.load_from_fp32_weights", zero.load_from_fp32_weights);
  visit("zero_optimization.ignore_unused_parameters", zero.ignore_unused_parameters);
  visit("zero_optimization.compute_grad_norm", zero.compute_grad_norm);
  auto& optimizer = zero.offload_optimizer;
  visit("zero_optimization.offload_optimizer.device", optimizer.device);
  visit("zero_optimization.offload_optimizer.nvme_path", optimizer.nvme_path);
  visit("zero_optimization.offload_optimizer.pin_memory", optimizer.pin_memory);
  visit("zero_optimization.offload_optimizer.ratio", optimizer.ratio);
  visit("zero_optimization.offload_optimizer.super_offload", optimizer.super_offload);
  visit("zero_optimization.offload_optimizer.buffer_count", optimizer.buffer_count);
  visit("zero_optimization.offload_optimizer.pipeline_read", optimizer.pipeline_read);
  visit("zero_optimization.offload_optimizer.pipeline_write", optimizer.pipeline_write);
  auto& param = zero.offload_param;
  visit("zero_optimization.offload_param.device", param.device);
  visit("zero_optimization.offload_param.nvme_path", param.nvme_path);
  visit("zero_optimization.offload_param.pin_memory", param.pin_memory);
  visit("zero_optimization.offload_param.max_in_cpu", param.max_in_cpu);
  visit("zero_optimization.stage3_prefetch_bucket_size", zero.prefetch_bucket_size);
  visit("zero_optimization.stage3_param_persistence_threshold", zero.param_persistence_threshold);
  visit("zero_optimization.stage3_max_live_parameters", zero.max_live_parameters);
  visit("zero_optimization.stage3_model_persistence_threshold", zero.model_persistence_threshold);
  visit("zero_optimization.zero_quantized_weights", zero.quantized_weights);
  visit("zero_optimization.zero_hpz_partition_size", zero.hpz_partition_size);
  visit("zero_optimization.zero_quantized_gradients", zero.quantized_gradients);
  visit(
      "zero_optimization.zero_quantized_nontrainable_weights", zero.quantized_nontrainable_weights);

  visit("tensorboard.enabled", config.tensorboard.enabled);
  visit("tensorboard.output_path", config.tensorboard.output_path);
  visit("tensorboard.job_name", config.tensorboard.job_name);
  visit("csv_monitor.enabled", config.csv_monitor.enabled);
  visit("csv_monitor.output_path", config.csv_monitor.output_path);
  visit("csv_monitor.job_name", config.csv_monitor.job_name);
  auto& flops = config.flops_profiler;
  visit("flops_profiler.enabled", flops.enabled);
  visit("flops_profiler.recompute_fwd_factor", flops.recompute_fwd_factor);
  visit("flops_profiler.profile_step", flops.profile_step);
  visit("flops_profiler.module_depth", flops.module_depth);
  visit("flops_profiler.top_modules", flops.top_modules);
  visit("flops_profiler.detailed", flops.detailed);
  visit("flops_profiler.output_file", flops.output_file);
  auto& comms = config.comms_logger;
  visit("comms_logger.enabled", comms.enabled);
  visit("comms_logger.verbose", comms.verbose);
  visit("comms_logger.debug", comms.debug);
  visit("comms_logger.prof_all", comms.prof_all);
  visit("comms_logger.prof_ops", comms.prof_ops);
  auto& activations = config.activation_checkpointing;
  visit("activation_checkpointing.partition_activations", activations.partition_activations);
  visit("activation_checkpointing.cpu_checkpointing", activations.cpu_checkpointing);
  visit(
      "activation_checkpointing.contiguous_memory_optimization",
      activations.contiguous_memory_optimization);
  visit("activation_checkpointing.number_checkpoints", activations.number_checkpoints);
  visit(
      "activation_checkpointing.synchronize_checkpoint_boundary",
      activations.synchronize_checkpoint_boundary);
  visit("activation_checkpointing.profile", activations.profile);
  visit("steps_per_print", config.steps_per_print);
  visit("wall_clock_breakdown", config.wall_clock_breakdown);
  visit("memory_breakdown", config.memory_breakdown);
  visit("dump_state", config.dump_state);
  visit("log_level", config.log_level);
  visit("timers.throughput.enabled", config.throughput_timer);
  visit("checkpoint.tag_validation", config.tag_validation);
  visit("checkpoint.use_node_local_storage", config.use_node_local_storage);
}

}  // namespace lockstep::ds_config
