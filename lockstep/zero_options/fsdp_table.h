// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/zero_options/fsdp_plugin.h"

namespace lockstep::fsdp {

enum class Type { kBoolean, kInteger, kWord, kText };

/// A word of an option, with the enum's value of FsdpPlugin's member.
struct Word {
  std::string_view text;  ///< In capitals.
  int value;

  template <typename Value>
  constexpr Word(std::string_view words_text, Value words_value)
      : text(words_text), value(static_cast<int>(words_value)) {}
};

/// One row of the table: an option of FSDP by its names in Accelerate, and its effect in Lockstep.
///
/// The readers of Accelerate's file (config/import) and of the variables of `accelerate launch`
/// (accelerator/options) use it: an option without a row is unknown to both. Python's lists of
/// words come from it, too.
struct Option {
  const char* key;       ///< Of the file's fsdp_config.
  const char* variable;  ///< Of the environment.
  Type type = Type::kText;
  std::span<const Word> words = {};  ///< Of kWord, in torch's order.
  size_t numbers = 0;                ///< The first words that have torch's number, from 1, too.
  std::string_view member = {};      ///< Of FsdpPlugin; empty: the plugin has no such option.
  /// The options of ZeRO that the member sets, by their names in visit_zero_options, with blanks
  /// between them.
  std::string_view zero = {};
  /// The reason why any value is an error, and what to do instead.
  std::string_view refusal = {};
  std::string_view instead = {};
  /// Import of the file: the note about values other than `silent_value`. Empty: the import sets
  /// the stage by this option, or ignores it.
  std::string_view import_note = {};
  std::string_view silent_value = {};
  /// The reason why the variable has no effect, for the value `noted`.
  std::string_view variable_note = {};
  bool noted = true;
  bool sets_stage = false;  ///< The import takes zero_stage from it.

  constexpr bool is_refused() const { return !refusal.empty(); }
};

inline constexpr std::array kStrategyWords = {
    Word("FULL_SHARD", ShardingStrategy::kFullShard),
    Word("SHARD_GRAD_OP", ShardingStrategy::kShardGradOp),
    Word("NO_SHARD", ShardingStrategy::kNoShard),
    Word("HYBRID_SHARD", ShardingStrategy::kHybridShard),
    Word("HYBRID_SHARD_ZERO2", ShardingStrategy::kHybridShardZero2)};

inline constexpr std::array kWrapWords = {
    Word("TRANSFORMER_BASED_WRAP", AutoWrapPolicy::kTransformer),
    Word("SIZE_BASED_WRAP", AutoWrapPolicy::kSize),
    Word("NO_WRAP", AutoWrapPolicy::kNone)};

/// BACKWARD_POST runs as BACKWARD_PRE.
inline constexpr std::array kPrefetchWords = {
    Word("BACKWARD_PRE", BackwardPrefetch::kPre),
    Word("BACKWARD_POST", BackwardPrefetch::kPre),
    Word("NO_PREFETCH", BackwardPrefetch::kNone)};

inline constexpr std::array kStateDictWords = {
    Word("FULL_STATE_DICT", StateDictType::kFullStateDict),
    Word("LOCAL_STATE_DICT", StateDictType::kLocalStateDict),
    Word("SHARDED_STATE_DICT", StateDictType::kShardedStateDict)};

inline constexpr Option kVersion{
    .key = "fsdp_version", .variable = "FSDP_VERSION", .type = Type::kInteger, .sets_stage = true};

inline constexpr Option kShardingStrategy{
    .key = "fsdp_sharding_strategy",
    .variable = "FSDP_SHARDING_STRATEGY",
    .type = Type::kWord,
    .words = kStrategyWords,
    .numbers = 5,
    .member = "sharding_strategy",
    .zero = "stage zero_hpz_partition_size",
    .sets_stage = true};

/// With fsdp_version 2 a boolean, else another name of the strategy.
inline constexpr Option kReshardAfterForward{
    .key = "fsdp_reshard_after_forward",
    .variable = "FSDP_RESHARD_AFTER_FORWARD",
    .type = Type::kWord,
    .words = kStrategyWords,
    .numbers = 5,
    .member = "reshard_after_forward",
    .zero = "stage",
    .sets_stage = true};

inline constexpr Option kIgnoredModules{
    .key = "fsdp_ignored_modules",
    .variable = "FSDP_IGNORED_MODULES",
    .refusal = "every parameter of a prepared model is sharded and averaged",
    .instead = "prepare a model without these modules"};

inline constexpr Option kOffloadParams{
    .key = "fsdp_offload_params",
    .variable = "FSDP_OFFLOAD_PARAMS",
    .type = Type::kBoolean,
    .member = "cpu_offload",
    .zero = "offload_optimizer.device offload_param.device",
    .import_note = "set FsdpPlugin::cpu_offload in the program; by default nothing is offloaded",
    .silent_value = "false"};

inline constexpr Option kAutoWrapPolicy{
    .key = "fsdp_auto_wrap_policy",
    .variable = "FSDP_AUTO_WRAP_POLICY",
    .type = Type::kWord,
    .words = kWrapWords,
    .member = "auto_wrap_policy",
    .zero = "bucket_cap_bytes stage3_unit_classes",
    .import_note =
        "set FsdpPlugin::auto_wrap_policy in the program; by default a bucket has a sixteenth of "
        "the model; results are the same",
    .silent_value = "no_wrap"};

inline constexpr Option kBackwardPrefetch{
    .key = "fsdp_backward_prefetch",
    .variable = "FSDP_BACKWARD_PREFETCH",
    .type = Type::kWord,
    .words = kPrefetchWords,
    .numbers = 2,
    .member = "backward_prefetch",
    .zero = "stage3_prefetch",
    .import_note = "set FsdpPlugin::backward_prefetch in the program; the default is BACKWARD_PRE",
    .silent_value = "backward_pre"};

inline constexpr Option kStateDictType{
    .key = "fsdp_state_dict_type",
    .variable = "FSDP_STATE_DICT_TYPE",
    .type = Type::kWord,
    .words = kStateDictWords,
    .numbers = 3,
    .member = "state_dict_type",
    .zero = "state_dict_type",
    .import_note =
        "set FsdpPlugin::state_dict_type in the program; the default is SHARDED_STATE_DICT, which "
        "any number of processes can load",
    .silent_value = "sharded_state_dict"};

inline constexpr Option kActivationCheckpointing{
    .key = "fsdp_activation_checkpointing",
    .variable = "FSDP_ACTIVATION_CHECKPOINTING",
    .type = Type::kBoolean,
    .import_note = "call activation_checkpoint(module, x) in the program",
    .silent_value = "false",
    .variable_note = "the program calls activation_checkpoint(module, x)"};

inline constexpr Option kActivationOffload{
    .key = "fsdp_activation_checkpointing_offload",
    .variable = "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD",
    .type = Type::kBoolean,
    .import_note = "open an ActivationCheckpointing::Scope with cpu_checkpointing in the program",
    .silent_value = "false",
    .variable_note = "the program opens an ActivationCheckpointing::Scope with cpu_checkpointing"};

inline constexpr Option kLayerClasses{
    .key = "fsdp_transformer_layer_cls_to_wrap",
    .variable = "FSDP_TRANSFORMER_CLS_TO_WRAP",
    .member = "transformer_layer_cls_to_wrap",
    .zero = "stage3_unit_classes"};

inline constexpr Option kMinNumParams{
    .key = "fsdp_min_num_params",
    .variable = "FSDP_MIN_NUM_PARAMS",
    .type = Type::kInteger,
    .member = "min_num_params",
    .zero = "bucket_cap_bytes"};

inline constexpr Option kForwardPrefetch{
    .key = "fsdp_forward_prefetch",
    .variable = "FSDP_FORWARD_PREFETCH",
    .type = Type::kBoolean,
    .variable_note = "the next parameters are always prefetched, see backward_prefetch"};

inline constexpr Option kUseOrigParams{
    .key = "fsdp_use_orig_params",
    .variable = "FSDP_USE_ORIG_PARAMS",
    .type = Type::kBoolean,
    .variable_note = "it is always true here",
    .noted = false};

inline constexpr Option kSyncModuleStates{
    .key = "fsdp_sync_module_states",
    .variable = "FSDP_SYNC_MODULE_STATES",
    .type = Type::kBoolean,
    .variable_note = "it is always true here",
    .noted = false};

inline constexpr Option kCpuRamEfficientLoading{
    .key = "fsdp_cpu_ram_efficient_loading",
    .variable = "FSDP_CPU_RAM_EFFICIENT_LOADING",
    .type = Type::kBoolean,
    .variable_note = "the program builds the model in Accelerator::zero_init"};

/// All rows. Messages list options in this order.
inline constexpr std::array kOptions = {
    kVersion,
    kShardingStrategy,
    kReshardAfterForward,
    kIgnoredModules,
    kOffloadParams,
    kAutoWrapPolicy,
    kBackwardPrefetch,
    kStateDictType,
    kActivationCheckpointing,
    kActivationOffload,
    kLayerClasses,
    kMinNumParams,
    kForwardPrefetch,
    kUseOrigParams,
    kSyncModuleStates,
    kCpuRamEfficientLoading};

/// Returns the word of an option that `text` is, in any case or as torch's number; null for none.
const Word* find_word(const Option& option, const std::string& text);

/// Returns ZeRO's stage of a strategy; 0: data parallel.
int stage_of(ShardingStrategy strategy);

}  // namespace lockstep::fsdp
