// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/accelerator/options/options.h"

namespace lockstep {

/// Says whether processes may have different values of an option.
enum class AmongRanks {
  kEqual,    ///< No: their numbers or messages depend on it.
  kAnyValue  ///< Yes: it is about the process's own memory or disk.
};

/// The valid numbers of some options.
struct ZeroRange {
  int64_t min;
  int64_t max;
  /// The error for other numbers. {got} is the number, {all} "name=number, ..." of all options with
  /// this range.
  const char* error;
};

/// The stages in which some options have an effect: from `first` on.
struct ZeroStages {
  int first;
  /// The error if one of them is used in a lower stage; {options} are their names, {stage} is the
  /// stage. Null: it has no effect there.
  const char* error;
};

/// The part of a row that is about single values of an option. Rules between options are functions
/// (zero_setup/resolve_zero.cpp).
struct ZeroRule {
  AmongRanks among_ranks = AmongRanks::kEqual;
  const ZeroRange* range = nullptr;    ///< Null: all, or what a rule between options says.
  const ZeroStages* stages = nullptr;  ///< Null: all.
};

inline constexpr ZeroRange kStageNumbers{
    1, 3, "no such stage; got {got}, expected 1, 2 or 3; leave zero unset for data parallel"};
inline constexpr ZeroRange kBucketElements{
    1,
    std::numeric_limits<int64_t>::max(),
    "reduce_bucket_size is the elements of the largest bucket; got {got}; set it to at least 1, or "
    "only bucket_cap_bytes"};
inline constexpr ZeroRange kElementCounts{
    0, std::numeric_limits<int64_t>::max(), "numbers of elements cannot be negative; got {all}"};

inline constexpr ZeroStages kOnlyStage3{3, nullptr};
inline constexpr ZeroStages kPlusPlusStages{
    3,
    "ZeRO++ ({options}) changes how stage 3 communicates; got stage {stage}, expected 3; try stage "
    "3, or leave them out"};
inline constexpr ZeroStages kUnitStages{
    3,
    "{options} lists modules whose parameters stage 3 unshards together; got stage {stage}, "
    "expected 3; leave it out, or use stage 3"};
inline constexpr ZeroStages kOffloadParamStages{
    3,
    "offload_param moves the parameters that stage 3 shards; got stage {stage}, expected 3; use "
    "stage 3, or leave it out"};

/// Calls `visit(name, value, ZeroRule)` for each option of ZeRO, one row each.
///
/// Python's options, the comparison among ranks and the checks of single values are visitors: an
/// option without a row is unknown to them. A value is a bool, a number, a text or path, a list of
/// texts, a dtype, an enum that has words (base/enum_words.h), or an optional of these. `Plugin` is
/// a ZeroPlugin, const or not.
///
/// Counts of buffers and elements in memory may differ among ranks, since no message depends on
/// them.
template <typename Plugin, typename Visit>
void visit_zero_options(Plugin& plugin, const Visit& visit) {
  using Rule = ZeroRule;
  constexpr Rule kEqual{};
  constexpr Rule kAny{.among_ranks = AmongRanks::kAnyValue};
  constexpr Rule kStage3{.stages = &kOnlyStage3};
  constexpr Rule kStage3Elements{.range = &kElementCounts, .stages = &kOnlyStage3};
  constexpr Rule kPlusPlus{.stages = &kPlusPlusStages};
  visit("stage", plugin.stage, Rule{.range = &kStageNumbers});
  visit("bucket_cap_bytes", plugin.bucket_cap_bytes, kEqual);
  visit("reduce_bucket_size", plugin.reduce_bucket_size, Rule{.range = &kBucketElements});
  visit("stage3_max_live_parameters", plugin.stage3_max_live_parameters, kStage3Elements);
  visit(
      "stage3_param_persistence_threshold",
      plugin.stage3_param_persistence_threshold,
      kStage3Elements);
  visit(
      "stage3_model_persistence_threshold",
      plugin.stage3_model_persistence_threshold,
      kStage3Elements);
  visit("stage3_prefetch", plugin.stage3_prefetch, kStage3);
  visit("stage3_unit_classes", plugin.stage3_unit_classes, Rule{.stages = &kUnitStages});
  visit("state_dict_type", plugin.state_dict_type, kEqual);
  visit("zero_quantized_weights", plugin.zero_quantized_weights, kPlusPlus);
  visit("zero_quantized_gradients", plugin.zero_quantized_gradients, kPlusPlus);
  visit("zero_hpz_partition_size", plugin.zero_hpz_partition_size, kPlusPlus);
  visit(
      "zero_quantized_nontrainable_weights", plugin.zero_quantized_nontrainable_weights, kPlusPlus);
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
  visit("offload_param.device", param.device, Rule{.stages = &kOffloadParamStages});
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
