// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"

namespace lockstep {

/// Says whether processes may have different values of an option.
enum class AmongRanks {
  kEqual,    ///< No: their numbers or messages depend on it.
  kAnyValue  ///< Yes: it is about the process's own memory or disk.
};

/// Calls `visit(name, value, AmongRanks)` for each option of ZeRO, one row each.
///
/// Python's options and the comparison among ranks are visitors: an option without a row is unknown
/// to both. A value is a bool, a number, a text or path, a list of texts, a dtype, an enum that has
/// words (base/enum_words.h), or an optional of these. `Plugin` is a ZeroPlugin, const or not.
///
/// Counts of buffers and elements in memory may differ among ranks, since no message depends on
/// them.
template <typename Plugin, typename Visit>
void visit_zero_options(Plugin& plugin, const Visit& visit) {
  constexpr AmongRanks kEqual = AmongRanks::kEqual;
  constexpr AmongRanks kAny = AmongRanks::kAnyValue;
  visit("stage", plugin.stage, kEqual);
  visit("bucket_cap_bytes", plugin.bucket_cap_bytes, kEqual);
  visit("reduce_bucket_size", plugin.reduce_bucket_size, kEqual);
  visit("stage3_max_live_parameters", plugin.stage3_max_live_parameters, kEqual);
  visit("stage3_param_persistence_threshold", plugin.stage3_param_persistence_threshold, kEqual);
  visit("stage3_model_persistence_threshold", plugin.stage3_model_persistence_threshold, kEqual);
  visit("stage3_prefetch", plugin.stage3_prefetch, kEqual);
  visit("stage3_unit_classes", plugin.stage3_unit_classes, kEqual);
  visit("state_dict_type", plugin.state_dict_type, kEqual);
  visit("zero_quantized_weights", plugin.zero_quantized_weights, kEqual);
  visit("zero_quantized_gradients", plugin.zero_quantized_gradients, kEqual);
  visit("zero_hpz_partition_size", plugin.zero_hpz_partition_size, kEqual);
  visit("zero_quantized_nontrainable_weights", plugin.zero_quantized_nontrainable_weights, kEqual);
  auto& optimizer = plugin.offload_optimizer;
  visit("offload_optimizer.device", optimizer.device, kEqual);
  visit("offload_optimizer.nvme_path", optimizer.nvme_path, kAny);
  visit("offload_optimizer.pin_memory", optimizer.pin_memory, kAny);
  visit("offload_optimizer.ratio", optimizer.ratio, kEqual);
  visit("offload_optimizer.buffer_count", optimizer.buffer_count, kAny);
  visit("offload_optimizer.pipeline_read", optimizer.pipeline_read, kAny);
  visit("offload_optimizer.pipeline_write", optimizer.pipeline_write, kAny);
  visit("offload_optimizer.super_offload", optimizer.super_offload, kEqual);
  auto& param = plugin.offload_param;
  visit("offload_param.device", param.device, kEqual);
  visit("offload_param.nvme_path", param.nvme_path, kAny);
  visit("offload_param.pin_memory", param.pin_memory, kAny);
  visit("offload_param.max_in_cpu", param.max_in_cpu, kAny);
  visit("fp32_masters", plugin.fp32_masters, kEqual);
  visit("fp32_optimizer_states", plugin.fp32_optimizer_states, kEqual);
  visit("grad_accum_dtype", plugin.grad_accum_dtype, kEqual);
  visit("communication_data_type", plugin.communication_data_type, kEqual);
  visit("load_from_fp32_weights", plugin.load_from_fp32_weights, kEqual);
}

}  // namespace lockstep
