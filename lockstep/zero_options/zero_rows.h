// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/zero_options/zero_plugin.h"

namespace lockstep {

/// Says whether processes may have different values of an option.
enum class AmongRanks {
  kEqual,    ///< No: their numbers or messages depend on it.
  kAnyValue  ///< Yes: it is about the process's own memory or disk.
};

/// The valid numbers of some options.
struct ZeroRange {
  static constexpr int64_t kNoMax = std::numeric_limits<int64_t>::max();
  int64_t min;
  int64_t max;
  /// The error for other numbers of a program. {got} is the number, {all} "name=number, ..." of all
  /// options with this range. Null: only the reader of ds_config.json checks the range.
  const char* error = nullptr;
};

/// The stages in which some options have an effect: from `first` on.
struct ZeroStages {
  int first;
  /// The error if one of them is used in a lower stage; {options} are their names, {stage} is the
  /// stage. Null: it has no effect there.
  const char* error;
};

/// The part of a row that is about single values of an option. Rules between options are functions
/// (check_zero_options.h).
struct ZeroRule {
  AmongRanks among_ranks = AmongRanks::kEqual;
  const ZeroRange* range = nullptr;    ///< Null: all, or what a rule between options says.
  const ZeroStages* stages = nullptr;  ///< Null: all.
};

inline constexpr ZeroRange kStageNumbers{
    1, 3, "no such stage; got {got}, expected 1, 2 or 3; leave zero unset for data parallel"};
inline constexpr ZeroRange kBucketElements{
    1,
    ZeroRange::kNoMax,
    "reduce_bucket_size is the elements of the largest bucket; got {got}; set it to at least 1, or "
    "only bucket_cap_bytes"};
inline constexpr ZeroRange kElementCounts{
    0, ZeroRange::kNoMax, "numbers of elements cannot be negative; got {all}"};
inline constexpr ZeroRange kCountFrom0{0, ZeroRange::kNoMax};
inline constexpr ZeroRange kCountFrom1{1, ZeroRange::kNoMax};
inline constexpr ZeroRange kFraction{0, 1};

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

/// One row: the option that is the member of ZeroPlugin at `Path`.
template <auto... Path>
struct ZeroRow {
  const char* name;  ///< "offload_param.device".
  ZeroRule rule = {};
  /// Describes the option as a key of zero_optimization in ds_config.json. Null: it is no such key.
  const char* ds_key = nullptr;

  /// Returns the option's value in a ZeroPlugin, const or not.
  template <typename Plugin>
  static auto& in(Plugin& plugin) {
    return (plugin.*....*Path);
  }
};

/// Calls `visit(row)` with the ZeroRow of each option.
///
/// All readers visit these rows: Python's options, ds_config.json, the comparison among ranks and
/// the checks of single values. A value is a bool, a number, a text or path, a list of texts, a
/// FloatDtype, another enum that has words (base/enum_words.h), or an optional of these.
///
/// Folders, pinned memory, buffer_count and max_in_cpu may differ among ranks, since no message
/// depends on them. The order of the rows is that of messages that list options.
template <typename Visit>
void visit_zero_rows(const Visit& visit) {
  using Plugin = ZeroPlugin;
  constexpr ZeroRule kEqual{};
  constexpr ZeroRule kAny{.among_ranks = AmongRanks::kAnyValue};
  constexpr ZeroRule kStage3Elements{.range = &kElementCounts, .stages = &kOnlyStage3};
  constexpr ZeroRule kPlusPlus{.stages = &kPlusPlusStages};
  visit(ZeroRow<&Plugin::stage>{
      "stage",
      {.range = &kStageNumbers},
      "0: data parallel; 1: shards the optimizer state; 2: also the gradients; 3: also the "
      "parameters"});
  visit(ZeroRow<&Plugin::bucket_cap_bytes>{"bucket_cap_bytes"});
  visit(ZeroRow<&Plugin::reduce_bucket_size>{
      "reduce_bucket_size",
      {.range = &kBucketElements},
      "elements of the largest gradient bucket; not set: 25 MiB"});
  visit(ZeroRow<&Plugin::stage3_max_live_parameters>{
      "stage3_max_live_parameters",
      kStage3Elements,
      "unsharded elements at a time; not set: those of the three largest buckets"});
  visit(ZeroRow<&Plugin::stage3_param_persistence_threshold>{
      "stage3_param_persistence_threshold",
      kStage3Elements,
      "parameters of up to this many elements are not sharded"});
  visit(ZeroRow<&Plugin::stage3_model_persistence_threshold>{
      "stage3_model_persistence_threshold",
      kStage3Elements,
      "elements that are not sharded in total, in the model's order; a parameter beyond this limit "
      "is sharded"});
  visit(ZeroRow<&Plugin::stage3_prefetch>{"stage3_prefetch", {.stages = &kOnlyStage3}});
  visit(ZeroRow<&Plugin::stage3_unit_classes>{"stage3_unit_classes", {.stages = &kUnitStages}});
  visit(ZeroRow<&Plugin::state_dict_type>{"state_dict_type"});
  visit(ZeroRow<&Plugin::zero_quantized_weights>{
      "zero_quantized_weights", kPlusPlus, "ZeRO++: weights are sent in 8 bits"});
  visit(ZeroRow<&Plugin::zero_quantized_gradients>{
      "zero_quantized_gradients", kPlusPlus, "ZeRO++: gradients are sent in 4 bits"});
  visit(ZeroRow<&Plugin::zero_hpz_partition_size>{
      "zero_hpz_partition_size",
      {.range = &kCountFrom0, .stages = &kPlusPlusStages},
      "ZeRO++: number of ranks that share a second copy of the weights"});
  visit(ZeroRow<&Plugin::zero_quantized_nontrainable_weights>{
      "zero_quantized_nontrainable_weights",
      kPlusPlus,
      "ZeRO++: frozen weights are stored and sent in 8 bits"});
  constexpr auto kOptimizer = &Plugin::offload_optimizer;
  visit(ZeroRow<kOptimizer, &OffloadOptimizer::device>{
      "offload_optimizer.device", kEqual, "the destination"});
  visit(ZeroRow<kOptimizer, &OffloadOptimizer::nvme_path>{
      "offload_optimizer.nvme_path", kAny, "an existing folder; required with device nvme"});
  visit(ZeroRow<kOptimizer, &OffloadOptimizer::pin_memory>{
      "offload_optimizer.pin_memory", kAny, "page-locked memory between a GPU and the host"});
  visit(ZeroRow<kOptimizer, &OffloadOptimizer::ratio>{
      "offload_optimizer.ratio",
      {.range = &kFraction},
      "part of the state that is offloaded, in complete buckets; more than 0"});
  visit(ZeroRow<kOptimizer, &OffloadOptimizer::buffer_count>{
      "offload_optimizer.buffer_count",
      {.among_ranks = AmongRanks::kAnyValue, .range = &kCountFrom1},
      "device nvme: buffers in memory, each for one field of a bucket's state"});
  visit(ZeroRow<kOptimizer, &OffloadOptimizer::pipeline_read>{
      "offload_optimizer.pipeline_read",
      kAny,
      "device nvme: read the next bucket during the update of another; not set: true"});
  visit(ZeroRow<kOptimizer, &OffloadOptimizer::pipeline_write>{
      "offload_optimizer.pipeline_write",
      kAny,
      "device nvme: write the last bucket during the update of another; not set: true"});
  visit(ZeroRow<kOptimizer, &OffloadOptimizer::super_offload>{
      "offload_optimizer.super_offload",
      kEqual,
      "device cpu: updates begin during backward, on copies in the host's memory"});
  constexpr auto kParam = &Plugin::offload_param;
  visit(ZeroRow<kParam, &OffloadParam::device>{
      "offload_param.device", {.stages = &kOffloadParamStages}, "the destination"});
  visit(ZeroRow<kParam, &OffloadParam::nvme_path>{
      "offload_param.nvme_path", kAny, "an existing folder; required with device nvme"});
  visit(ZeroRow<kParam, &OffloadParam::pin_memory>{
      "offload_param.pin_memory", kAny, "page-locked memory between a GPU and the host"});
  visit(ZeroRow<kParam, &OffloadParam::max_in_cpu>{
      "offload_param.max_in_cpu",
      {.among_ranks = AmongRanks::kAnyValue, .range = &kCountFrom0},
      "device nvme: elements of a rank's shard that stay in memory"});
  visit(ZeroRow<&Plugin::fp32_masters>{"fp32_masters"});
  visit(ZeroRow<&Plugin::fp32_optimizer_states>{"fp32_optimizer_states"});
  visit(ZeroRow<&Plugin::grad_accum_dtype>{"grad_accum_dtype"});
  visit(ZeroRow<&Plugin::communication_data_type>{"communication_data_type"});
  visit(ZeroRow<&Plugin::load_from_fp32_weights>{
      "load_from_fp32_weights",
      kEqual,
      "false: the masters of 16-bit parameters are loaded from the rounded values"});
}

/// Calls `visit(name, value, ZeroRule)` for each option of a ZeroPlugin, const or not.
template <typename Plugin, typename Visit>
void visit_zero_options(Plugin& plugin, const Visit& visit) {
  visit_zero_rows([&](const auto& row) { visit(row.name, row.in(plugin), row.rule); });
}

}  // namespace lockstep
