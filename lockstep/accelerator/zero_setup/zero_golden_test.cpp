// SPDX-License-Identifier: Apache-2.0
/// Golden tests: every variable of FSDP and every member of FsdpPlugin and ZeroPlugin, with the
/// exact options or the exact error. Changed options are those that differ from ZeroPlugin().

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/accelerator/zero_setup/resolve_zero.h"
#include "lockstep/accelerator/zero_setup/test_zero_text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/base/text/split.h"

namespace lockstep {
namespace {

/// Returns what resolve_zero returns or throws for four processes, two on each host.
std::string resolved_text(
    const AcceleratorOptions& options, const Environment& environment = Environment::of({})) {
  try {
    const internal::ResolvedZero resolved =
        internal::resolve_zero(options, environment, {.processes = 4, .host_size = 2});
    std::string text = resolved.plugin ? zero_text(*resolved.plugin) : "data parallel";
    for (const std::string& line : resolved.not_used) {
      text += "\nnot used: " + line;
    }
    return text;
  } catch (const ConfigError& error) {
    return error.what();
  }
}

/// Reads "NAME=value NAME=value".
Environment environment_of(const std::string& text) {
  std::map<std::string, std::string> variables;
  for (const std::string& part : split(text, ' ')) {
    const size_t equals = part.find('=');
    variables[part.substr(0, equals)] = part.substr(equals + 1);
  }
  return Environment::of(std::move(variables));
}

TEST(ZeroGolden, EveryVariableOfFsdp) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ACCELERATE_USE_FSDP=false FSDP_SHARDING_STRATEGY=FULL_SHARD "
       "FSDP_RESHARD_AFTER_FORWARD=true",
       "data parallel\n"
       "not used: FSDP_SHARDING_STRATEGY: ACCELERATE_USE_FSDP is not true\n"
       "not used: FSDP_RESHARD_AFTER_FORWARD: ACCELERATE_USE_FSDP is not true"},
      {"ACCELERATE_USE_FSDP=maybe",
       "[environment] invalid value 'maybe' for ACCELERATE_USE_FSDP; expected 1 or 0, "
       "true or false, yes or no"},
      {"ACCELERATE_USE_FSDP=true", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_VERSION=1", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_VERSION=2", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_VERSION=3",
       "[environment] invalid value '3' for FSDP_VERSION; expected a whole number from 1 "
       "to 2; correct it, or unset it"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=FULL_SHARD", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=shard_grad_op", "defaults"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=NO_SHARD", "data parallel"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=HYBRID_SHARD",
       "stage=3 zero_hpz_partition_size=2"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=HYBRID_SHARD_ZERO2", "defaults"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=1", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=2", "defaults"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=3", "data parallel"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=4", "stage=3 zero_hpz_partition_size=2"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=5", "defaults"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=6",
       "[FSDP_SHARDING_STRATEGY] has an unknown value; got '6', expected one of "
       "full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2, 1, 2, 3, "
       "4, 5, in any case"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=_HYBRID_SHARD_ZERO2",
       "[FSDP_SHARDING_STRATEGY] has an unknown value; got '_HYBRID_SHARD_ZERO2', "
       "expected one of full_shard, shard_grad_op, no_shard, hybrid_shard, "
       "hybrid_shard_zero2, 1, 2, 3, 4, 5, in any case; did you mean 'hybrid_shard_zero2'?"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=FULL_SHRD",
       "[FSDP_SHARDING_STRATEGY] has an unknown value; got 'FULL_SHRD', expected one of "
       "full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2, 1, 2, 3, "
       "4, 5, in any case; did you mean 'full_shard'?"},
      {"ACCELERATE_USE_FSDP=true FSDP_RESHARD_AFTER_FORWARD=SHARD_GRAD_OP", "defaults"},
      {"ACCELERATE_USE_FSDP=true FSDP_RESHARD_AFTER_FORWARD=true",
       "[FSDP_RESHARD_AFTER_FORWARD] has an unknown value; got 'true', expected one of "
       "full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2, 1, 2, 3, "
       "4, 5, in any case"},
      {"ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP "
       "FSDP_RESHARD_AFTER_FORWARD=true",
       "defaults\n"
       "not used: FSDP_RESHARD_AFTER_FORWARD: FSDP_VERSION 1 uses FSDP_SHARDING_STRATEGY"},
      {"ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_RESHARD_AFTER_FORWARD=true", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_RESHARD_AFTER_FORWARD=false", "defaults"},
      {"ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_RESHARD_AFTER_FORWARD=FULL_SHARD",
       "[environment] invalid value 'FULL_SHARD' for FSDP_RESHARD_AFTER_FORWARD; expected "
       "1 or 0, true or false, yes or no"},
      {"ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_SHARDING_STRATEGY=NO_SHARD",
       "stage=3\n"
       "not used: FSDP_SHARDING_STRATEGY: FSDP_VERSION 2 uses FSDP_RESHARD_AFTER_FORWARD"},
      {"ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_SHARDING_STRATEGY=NO",
       "[FSDP_SHARDING_STRATEGY] has an unknown value; got 'NO', expected one of "
       "full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2, 1, 2, 3, "
       "4, 5, in any case"},
      {"ACCELERATE_USE_FSDP=true FSDP_OFFLOAD_PARAMS=true",
       "offload_optimizer.device=cpu offload_param.device=cpu stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_OFFLOAD_PARAMS=false", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_OFFLOAD_PARAMS=maybe",
       "[environment] invalid value 'maybe' for FSDP_OFFLOAD_PARAMS; expected 1 or 0, "
       "true or false, yes or no"},
      {"ACCELERATE_USE_FSDP=true FSDP_OFFLOAD_PARAMS=true "
       "FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP",
       "offload_optimizer.device=cpu"},
      {"ACCELERATE_USE_FSDP=true FSDP_OFFLOAD_PARAMS=true FSDP_SHARDING_STRATEGY=NO_SHARD",
       "[fsdp_plugin] NO_SHARD keeps everything on the device; for cpu_offload use "
       "SHARD_GRAD_OP or FULL_SHARD"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=NO_WRAP", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=SIZE_BASED_WRAP",
       "bucket_cap_bytes=400000000 stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=size_based_wrap "
       "FSDP_MIN_NUM_PARAMS=1000",
       "bucket_cap_bytes=4000 stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=SIZE_BASED_WRAP "
       "FSDP_MIN_NUM_PARAMS=0",
       "[fsdp_plugin] min_num_params is 0; expected 1 to 1099511627776"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=SIZE_BASED_WRAP "
       "FSDP_MIN_NUM_PARAMS=many",
       "[environment] invalid value 'many' for FSDP_MIN_NUM_PARAMS; expected a whole "
       "number from 0 to 9223372036854775807; correct it, or unset it"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=SIZE_BASED_WRAP "
       "FSDP_SHARDING_STRATEGY=NO_SHARD",
       "data parallel\n"
       "not used: FSDP_AUTO_WRAP_POLICY: NO_SHARD shards nothing"},
      {"ACCELERATE_USE_FSDP=true FSDP_MIN_NUM_PARAMS=-1",
       "[environment] invalid value '-1' for FSDP_MIN_NUM_PARAMS; expected a whole number "
       "from 0 to 9223372036854775807; correct it, or unset it"},
      {"ACCELERATE_USE_FSDP=true FSDP_MIN_NUM_PARAMS=1000",
       "stage=3\n"
       "not used: FSDP_MIN_NUM_PARAMS: only SIZE_BASED_WRAP uses it"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP",
       "stage=3\n"
       "not used: FSDP_AUTO_WRAP_POLICY: TRANSFORMER_BASED_WRAP needs "
       "FSDP_TRANSFORMER_CLS_TO_WRAP"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP "
       "FSDP_TRANSFORMER_CLS_TO_WRAP=A,B",
       "stage=3 stage3_unit_classes=[A, B]"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP "
       "FSDP_TRANSFORMER_CLS_TO_WRAP=A FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP",
       "defaults"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=1",
       "[FSDP_AUTO_WRAP_POLICY] has an unknown value; got '1', expected one of "
       "transformer_based_wrap, size_based_wrap, no_wrap, in any case"},
      {"ACCELERATE_USE_FSDP=true FSDP_AUTO_WRAP_POLICY=NO_WRP",
       "[FSDP_AUTO_WRAP_POLICY] has an unknown value; got 'NO_WRP', expected one of "
       "transformer_based_wrap, size_based_wrap, no_wrap, in any case; did you mean "
       "'no_wrap'?"},
      {"ACCELERATE_USE_FSDP=true FSDP_TRANSFORMER_CLS_TO_WRAP=A",
       "stage=3\n"
       "not used: FSDP_TRANSFORMER_CLS_TO_WRAP: only TRANSFORMER_BASED_WRAP uses it"},
      {"ACCELERATE_USE_FSDP=true FSDP_BACKWARD_PREFETCH=BACKWARD_PRE", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_BACKWARD_PREFETCH=backward_post",
       "stage=3\n"
       "not used: FSDP_BACKWARD_PREFETCH: BACKWARD_POST runs as BACKWARD_PRE, with the "
       "same results"},
      {"ACCELERATE_USE_FSDP=true FSDP_BACKWARD_PREFETCH=NO_PREFETCH",
       "stage=3 stage3_prefetch=false"},
      {"ACCELERATE_USE_FSDP=true FSDP_BACKWARD_PREFETCH=1", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_BACKWARD_PREFETCH=2",
       "stage=3\n"
       "not used: FSDP_BACKWARD_PREFETCH: BACKWARD_POST runs as BACKWARD_PRE, with the "
       "same results"},
      {"ACCELERATE_USE_FSDP=true FSDP_BACKWARD_PREFETCH=3",
       "[FSDP_BACKWARD_PREFETCH] has an unknown value; got '3', expected one of "
       "backward_pre, backward_post, no_prefetch, 1, 2, in any case"},
      {"ACCELERATE_USE_FSDP=true FSDP_STATE_DICT_TYPE=FULL_STATE_DICT",
       "stage=3 state_dict_type=FULL_STATE_DICT"},
      {"ACCELERATE_USE_FSDP=true FSDP_STATE_DICT_TYPE=LOCAL_STATE_DICT",
       "[fsdp_plugin] state_dict_type LOCAL_STATE_DICT is not supported: only the same "
       "number of processes could load its flat memory; use SHARDED_STATE_DICT, which "
       "writes each process's shards by name"},
      {"ACCELERATE_USE_FSDP=true FSDP_STATE_DICT_TYPE=sharded_state_dict", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_STATE_DICT_TYPE=1",
       "stage=3 state_dict_type=FULL_STATE_DICT"},
      {"ACCELERATE_USE_FSDP=true FSDP_STATE_DICT_TYPE=2",
       "[fsdp_plugin] state_dict_type LOCAL_STATE_DICT is not supported: only the same "
       "number of processes could load its flat memory; use SHARDED_STATE_DICT, which "
       "writes each process's shards by name"},
      {"ACCELERATE_USE_FSDP=true FSDP_STATE_DICT_TYPE=3", "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_STATE_DICT_TYPE=FULL_STATE",
       "[FSDP_STATE_DICT_TYPE] has an unknown value; got 'FULL_STATE', expected one of "
       "full_state_dict, local_state_dict, sharded_state_dict, 1, 2, 3, in any case"},
      {"ACCELERATE_USE_FSDP=true FSDP_IGNORED_MODULES=head",
       "[FSDP_IGNORED_MODULES] is not supported: every parameter of a prepared model is "
       "sharded and averaged; got 'head', expected it unset; prepare a model without "
       "these modules"},
      {"ACCELERATE_USE_FSDP=true FSDP_ACTIVATION_CHECKPOINTING=true",
       "stage=3\n"
       "not used: FSDP_ACTIVATION_CHECKPOINTING: the program calls "
       "activation_checkpoint(module, x)"},
      {"ACCELERATE_USE_FSDP=true FSDP_ACTIVATION_CHECKPOINTING=maybe",
       "[environment] invalid value 'maybe' for FSDP_ACTIVATION_CHECKPOINTING; expected 1 "
       "or 0, true or false, yes or no"},
      {"ACCELERATE_USE_FSDP=true FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=true",
       "stage=3\n"
       "not used: FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD: the program opens an "
       "ActivationCheckpointing::Scope with cpu_checkpointing"},
      {"ACCELERATE_USE_FSDP=true FSDP_FORWARD_PREFETCH=true",
       "stage=3\n"
       "not used: FSDP_FORWARD_PREFETCH: the next parameters are always prefetched, see "
       "backward_prefetch"},
      {"ACCELERATE_USE_FSDP=true FSDP_CPU_RAM_EFFICIENT_LOADING=true",
       "stage=3\n"
       "not used: FSDP_CPU_RAM_EFFICIENT_LOADING: the program builds the model in "
       "Accelerator::zero_init"},
      {"ACCELERATE_USE_FSDP=true FSDP_USE_ORIG_PARAMS=false",
       "stage=3\n"
       "not used: FSDP_USE_ORIG_PARAMS: it is always true here"},
      {"ACCELERATE_USE_FSDP=true FSDP_SYNC_MODULE_STATES=false",
       "stage=3\n"
       "not used: FSDP_SYNC_MODULE_STATES: it is always true here"},
      {"ACCELERATE_USE_FSDP=true FSDP_ACTIVATION_CHECKPOINTING=false "
       "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=false FSDP_FORWARD_PREFETCH=false "
       "FSDP_CPU_RAM_EFFICIENT_LOADING=false FSDP_USE_ORIG_PARAMS=true "
       "FSDP_SYNC_MODULE_STATES=true",
       "stage=3"},
      {"ACCELERATE_USE_FSDP=true FSDP_ACTIVATION_CHECKPOINTING=1 "
       "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=1 FSDP_FORWARD_PREFETCH=1 "
       "FSDP_CPU_RAM_EFFICIENT_LOADING=1 FSDP_USE_ORIG_PARAMS=0 FSDP_SYNC_MODULE_STATES=0",
       "stage=3\n"
       "not used: FSDP_ACTIVATION_CHECKPOINTING: the program calls "
       "activation_checkpoint(module, x)\n"
       "not used: FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD: the program opens an "
       "ActivationCheckpointing::Scope with cpu_checkpointing\n"
       "not used: FSDP_FORWARD_PREFETCH: the next parameters are always prefetched, see "
       "backward_prefetch\n"
       "not used: FSDP_CPU_RAM_EFFICIENT_LOADING: the program builds the model in "
       "Accelerator::zero_init\n"
       "not used: FSDP_USE_ORIG_PARAMS: it is always true here\n"
       "not used: FSDP_SYNC_MODULE_STATES: it is always true here"},
  };
  for (const auto& [variables, expected] : cases) {
    EXPECT_EQ(resolved_text({}, environment_of(variables)), expected) << variables;
  }
}

TEST(ZeroGolden, EveryMemberOfFsdpPlugin) {
  const std::vector<std::pair<FsdpPlugin, std::string>> cases = {
      {FsdpPlugin{}, "stage=3"},
      {FsdpPlugin{.sharding_strategy = ShardingStrategy::kShardGradOp}, "defaults"},
      {FsdpPlugin{.sharding_strategy = ShardingStrategy::kNoShard}, "data parallel"},
      {FsdpPlugin{.sharding_strategy = ShardingStrategy::kHybridShard},
       "stage=3 zero_hpz_partition_size=2"},
      {FsdpPlugin{.sharding_strategy = ShardingStrategy::kHybridShardZero2}, "defaults"},
      {FsdpPlugin{.reshard_after_forward = true}, "stage=3"},
      {FsdpPlugin{.reshard_after_forward = false}, "defaults"},
      {FsdpPlugin{.sharding_strategy = ShardingStrategy::kNoShard, .reshard_after_forward = true},
       "[fsdp_plugin] reshard_after_forward and sharding_strategy are both set, but "
       "configure the same thing; give only one"},
      {FsdpPlugin{.auto_wrap_policy = AutoWrapPolicy::kSize}, "bucket_cap_bytes=400000000 stage=3"},
      {FsdpPlugin{.auto_wrap_policy = AutoWrapPolicy::kSize, .min_num_params = 7},
       "bucket_cap_bytes=28 stage=3"},
      {FsdpPlugin{.auto_wrap_policy = AutoWrapPolicy::kSize, .min_num_params = 0},
       "[fsdp_plugin] min_num_params is 0; expected 1 to 1099511627776"},
      {FsdpPlugin{.min_num_params = 7}, "stage=3"},
      {FsdpPlugin{.auto_wrap_policy = AutoWrapPolicy::kTransformer},
       "[fsdp_plugin] auto_wrap_policy kTransformer and transformer_layer_cls_to_wrap "
       "belong together; got 0 classes and the policy; give both or neither"},
      {FsdpPlugin{
           .auto_wrap_policy = AutoWrapPolicy::kTransformer,
           .transformer_layer_cls_to_wrap = {"A", "B"}},
       "stage=3 stage3_unit_classes=[A, B]"},
      {FsdpPlugin{.transformer_layer_cls_to_wrap = {"A"}},
       "[fsdp_plugin] auto_wrap_policy kTransformer and transformer_layer_cls_to_wrap "
       "belong together; got 1 classes and another policy; give both or neither"},
      {FsdpPlugin{
           .sharding_strategy = ShardingStrategy::kNoShard,
           .auto_wrap_policy = AutoWrapPolicy::kSize},
       "[fsdp_plugin] NO_SHARD shards nothing, so an auto_wrap_policy has no effect; "
       "remove it"},
      {FsdpPlugin{.backward_prefetch = BackwardPrefetch::kNone}, "stage=3 stage3_prefetch=false"},
      {FsdpPlugin{.cpu_offload = true},
       "offload_optimizer.device=cpu offload_param.device=cpu stage=3"},
      {FsdpPlugin{.sharding_strategy = ShardingStrategy::kShardGradOp, .cpu_offload = true},
       "offload_optimizer.device=cpu"},
      {FsdpPlugin{.sharding_strategy = ShardingStrategy::kNoShard, .cpu_offload = true},
       "[fsdp_plugin] NO_SHARD keeps everything on the device; for cpu_offload use "
       "SHARD_GRAD_OP or FULL_SHARD"},
      {FsdpPlugin{.state_dict_type = StateDictType::kFullStateDict},
       "stage=3 state_dict_type=FULL_STATE_DICT"},
      {FsdpPlugin{.state_dict_type = StateDictType::kLocalStateDict},
       "[fsdp_plugin] state_dict_type LOCAL_STATE_DICT is not supported: only the same "
       "number of processes could load its flat memory; use SHARDED_STATE_DICT, which "
       "writes each process's shards by name"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(resolved_text({.fsdp_plugin = cases[i].first}), cases[i].second) << "case " << i;
  }
}

TEST(ZeroGolden, HybridShardNeedsHostsOfOneSize) {
  const AcceleratorOptions options{
      .fsdp_plugin = FsdpPlugin{.sharding_strategy = ShardingStrategy::kHybridShard}};
  EXPECT_EQ(
      error_of([&] { internal::resolve_zero(options, Environment::of({}), {.processes = 3}); }),
      "[fsdp_plugin] HYBRID_SHARD needs the same number of processes on each host, with "
      "consecutive ranks; try FULL_SHARD");
}

TEST(ZeroGolden, EveryMemberOfZeroPlugin) {
  const std::vector<std::pair<ZeroPlugin, std::string>> cases = {
      {ZeroPlugin{.stage = 0},
       "[zero] no such stage; got 0, expected 1, 2 or 3; leave zero unset for data "
       "parallel"},
      {ZeroPlugin{.stage = 1}, "stage=1"},
      {ZeroPlugin{.stage = 3}, "stage=3"},
      {ZeroPlugin{.stage = 4},
       "[zero] no such stage; got 4, expected 1, 2 or 3; leave zero unset for data "
       "parallel"},
      {ZeroPlugin{.state_dict_type = StateDictType::kFullStateDict},
       "state_dict_type=FULL_STATE_DICT"},
      {ZeroPlugin{.state_dict_type = StateDictType::kLocalStateDict},
       "[zero] state_dict_type LOCAL_STATE_DICT is not supported: only the same number of "
       "processes could load its flat memory; use SHARDED_STATE_DICT, which writes each "
       "process's shards by name"},
      {ZeroPlugin{.bucket_cap_bytes = 1}, "bucket_cap_bytes=1"},
      {ZeroPlugin{.reduce_bucket_size = 1}, "reduce_bucket_size=1"},
      {ZeroPlugin{.reduce_bucket_size = 0},
       "[zero] reduce_bucket_size is the elements of the largest bucket; got 0; set it to "
       "at least 1, or only bucket_cap_bytes"},
      {ZeroPlugin{.bucket_cap_bytes = 1, .reduce_bucket_size = 0},
       "[zero] reduce_bucket_size is the elements of the largest bucket; got 0 and "
       "bucket_cap_bytes; set it to at least 1, or only bucket_cap_bytes"},
      {ZeroPlugin{.bucket_cap_bytes = 1, .reduce_bucket_size = 1},
       "[zero] reduce_bucket_size is the elements of the largest bucket; got 1 and "
       "bucket_cap_bytes; set it to at least 1, or only bucket_cap_bytes"},
      {ZeroPlugin{.stage3_max_live_parameters = 0}, "stage3_max_live_parameters=0"},
      {ZeroPlugin{.stage3_max_live_parameters = -1},
       "[zero] numbers of elements cannot be negative; got stage3_max_live_parameters=-1, "
       "stage3_param_persistence_threshold=0, "
       "stage3_model_persistence_threshold=9223372036854775807"},
      {ZeroPlugin{.stage3_param_persistence_threshold = -2},
       "[zero] numbers of elements cannot be negative; got stage3_max_live_parameters=0, "
       "stage3_param_persistence_threshold=-2, "
       "stage3_model_persistence_threshold=9223372036854775807"},
      {ZeroPlugin{.stage3_max_live_parameters = 5, .stage3_model_persistence_threshold = -3},
       "[zero] numbers of elements cannot be negative; got stage3_max_live_parameters=5, "
       "stage3_param_persistence_threshold=0, stage3_model_persistence_threshold=-3"},
      {ZeroPlugin{.stage3_prefetch = false}, "stage3_prefetch=false"},
      {ZeroPlugin{.stage3_unit_classes = {"A"}},
       "[zero] stage3_unit_classes lists modules whose parameters stage 3 unshards "
       "together; got stage 2, expected 3; leave it out, or use stage 3"},
      {ZeroPlugin{.stage = 3, .stage3_unit_classes = {"A"}}, "stage=3 stage3_unit_classes=[A]"},
      {ZeroPlugin{.zero_quantized_weights = true},
       "[zero] ZeRO++ (zero_quantized_weights, zero_quantized_gradients, "
       "zero_hpz_partition_size, zero_quantized_nontrainable_weights) changes how stage 3 "
       "communicates; got stage 2, expected 3; try stage 3, or leave them out"},
      {ZeroPlugin{.stage = 3, .zero_quantized_weights = true},
       "stage=3 zero_quantized_weights=true"},
      {ZeroPlugin{.stage = 1, .zero_quantized_gradients = true},
       "[zero] ZeRO++ (zero_quantized_weights, zero_quantized_gradients, "
       "zero_hpz_partition_size, zero_quantized_nontrainable_weights) changes how stage 3 "
       "communicates; got stage 1, expected 3; try stage 3, or leave them out"},
      {ZeroPlugin{.stage = 3, .zero_quantized_gradients = true},
       "stage=3 zero_quantized_gradients=true"},
      {ZeroPlugin{.zero_hpz_partition_size = 2},
       "[zero] ZeRO++ (zero_quantized_weights, zero_quantized_gradients, "
       "zero_hpz_partition_size, zero_quantized_nontrainable_weights) changes how stage 3 "
       "communicates; got stage 2, expected 3; try stage 3, or leave them out"},
      {ZeroPlugin{.zero_hpz_partition_size = 0}, "zero_hpz_partition_size=0"},
      {ZeroPlugin{.zero_hpz_partition_size = -1},
       "[zero] the processes cannot be divided into groups of zero_hpz_partition_size; "
       "got zero_hpz_partition_size=-1, expected a divisor of 4; try the number of "
       "processes of a host, or 1 for none"},
      {ZeroPlugin{.stage = 3, .zero_hpz_partition_size = 2}, "stage=3 zero_hpz_partition_size=2"},
      {ZeroPlugin{.stage = 3, .zero_hpz_partition_size = 3},
       "[zero] the processes cannot be divided into groups of zero_hpz_partition_size; "
       "got zero_hpz_partition_size=3, expected a divisor of 4; try the number of "
       "processes of a host, or 1 for none"},
      {ZeroPlugin{.zero_quantized_nontrainable_weights = true},
       "[zero] ZeRO++ (zero_quantized_weights, zero_quantized_gradients, "
       "zero_hpz_partition_size, zero_quantized_nontrainable_weights) changes how stage 3 "
       "communicates; got stage 2, expected 3; try stage 3, or leave them out"},
      {ZeroPlugin{.stage = 3, .zero_quantized_nontrainable_weights = true},
       "stage=3 zero_quantized_nontrainable_weights=true"},
      {ZeroPlugin{.offload_optimizer = {.device = OffloadDevice::kCpu}},
       "offload_optimizer.device=cpu"},
      {ZeroPlugin{.offload_optimizer = {.device = OffloadDevice::kNvme}},
       "[zero] offload_optimizer.device nvme needs a folder for its files; got no "
       "offload_optimizer.nvme_path; set it to one on a fast disk"},
      {ZeroPlugin{.offload_optimizer = {.device = OffloadDevice::kNvme, .nvme_path = "/d"}},
       "offload_optimizer.device=nvme offload_optimizer.nvme_path=/d"},
      {ZeroPlugin{.offload_optimizer = {.nvme_path = "/d"}},
       "[zero] offload_optimizer.nvme_path is for the device nvme; got '/d' and another "
       "device; set offload_optimizer.device to nvme, or leave the path out"},
      {ZeroPlugin{.offload_optimizer = {.pin_memory = false}},
       "offload_optimizer.pin_memory=false"},
      {ZeroPlugin{.offload_optimizer = {.ratio = 0.5}}, "offload_optimizer.ratio=0.5"},
      {ZeroPlugin{.offload_optimizer = {.buffer_count = 7}}, "offload_optimizer.buffer_count=7"},
      {ZeroPlugin{.offload_optimizer = {.pipeline_read = false, .pipeline_write = false}},
       "offload_optimizer.pipeline_read=false offload_optimizer.pipeline_write=false"},
      {ZeroPlugin{.offload_optimizer = {.super_offload = true}},
       "offload_optimizer.super_offload=true"},
      {ZeroPlugin{.offload_param = {.device = OffloadDevice::kCpu}},
       "[zero] offload_param moves the parameters that stage 3 shards; got stage 2, "
       "expected 3; use stage 3, or leave it out"},
      {ZeroPlugin{.stage = 3, .offload_param = {.device = OffloadDevice::kCpu}},
       "offload_param.device=cpu stage=3"},
      {ZeroPlugin{.stage = 3, .offload_param = {.device = OffloadDevice::kNvme}},
       "[zero] offload_param.device nvme needs a folder for its files; got no "
       "offload_param.nvme_path; set it to one on a fast disk"},
      {ZeroPlugin{
           .stage = 3, .offload_param = {.nvme_path = "/d", .pin_memory = false, .max_in_cpu = 1}},
       "[zero] offload_param.nvme_path is for the device nvme; got '/d' and another "
       "device; set offload_param.device to nvme, or leave the path out"},
      {ZeroPlugin{.stage = 3, .zero_hpz_partition_size = -1},
       "[zero] the processes cannot be divided into groups of zero_hpz_partition_size; "
       "got zero_hpz_partition_size=-1, expected a divisor of 4; try the number of "
       "processes of a host, or 1 for none"},
      {ZeroPlugin{.zero_hpz_partition_size = -1, .offload_param = {.device = OffloadDevice::kCpu}},
       "[zero] the processes cannot be divided into groups of zero_hpz_partition_size; "
       "got zero_hpz_partition_size=-1, expected a divisor of 4; try the number of "
       "processes of a host, or 1 for none"},
      {ZeroPlugin{.stage = 4, .reduce_bucket_size = 0},
       "[zero] no such stage; got 4, expected 1, 2 or 3; leave zero unset for data "
       "parallel"},
      {ZeroPlugin{.stage3_max_live_parameters = -1, .zero_quantized_weights = true},
       "[zero] numbers of elements cannot be negative; got stage3_max_live_parameters=-1, "
       "stage3_param_persistence_threshold=0, "
       "stage3_model_persistence_threshold=9223372036854775807"},
      {ZeroPlugin{.stage3_unit_classes = {"A"}, .zero_quantized_weights = true},
       "[zero] ZeRO++ (zero_quantized_weights, zero_quantized_gradients, "
       "zero_hpz_partition_size, zero_quantized_nontrainable_weights) changes how stage 3 "
       "communicates; got stage 2, expected 3; try stage 3, or leave them out"},
      {ZeroPlugin{.fp32_masters = false}, "fp32_masters=false"},
      {ZeroPlugin{.fp32_optimizer_states = false}, "fp32_optimizer_states=false"},
      {ZeroPlugin{.grad_accum_dtype = FloatDtype::kFloat32}, "grad_accum_dtype=Float"},
      {ZeroPlugin{.communication_data_type = FloatDtype::kBfloat16},
       "communication_data_type=BFloat16"},
      {ZeroPlugin{.load_from_fp32_weights = false}, "load_from_fp32_weights=false"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(resolved_text({.zero = cases[i].first}), cases[i].second) << "case " << i;
  }
}

}  // namespace
}  // namespace lockstep
