// SPDX-License-Identifier: Apache-2.0
/// Golden test: every key of Accelerate's fsdp_config, with the exact settings, notes and error.
#include "lockstep/config/import/import_fsdp.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::config {
namespace {

/// Returns a line for each setting, note and ignored key of a file with this fsdp_config, or the
/// error.
std::string imported_text(const std::string& fsdp_config) {
  const std::string file = "distributed_type: FSDP\nfsdp_config: {" + fsdp_config + "}\n";
  try {
    const Import import =
        import_accelerate(parse_document("a.yaml", file, Format::kYaml), Environment::of({}));
    std::string text;
    for (const auto& [name, value] : import.values.settings) {
      text += (text.empty() ? "" : " ") + name + "=" + value;
    }
    for (const std::string& note : import.notes) {
      text += "\n" + note;
    }
    for (const std::string& key : import.without_meaning) {
      text += "\nignored: " + key;
    }
    return text;
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(ImportFsdpGolden, EveryKey) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"fsdp_version: 1",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_version: 2",
       "zero_stage=3\n"
       "fsdp_config.fsdp_reshard_after_forward: true: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_version: 3",
       "[a.yaml:2:29] invalid value '3' for fsdp_config.fsdp_version; expected 1 or 2"},
      {"fsdp_sharding_strategy: FULL_SHARD",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_sharding_strategy: shard_grad_op",
       "zero_stage=2\n"
       "fsdp_config.fsdp_sharding_strategy: shard_grad_op: imported as zero_stage: 2, for "
       "programs that do not set it"},
      {"fsdp_sharding_strategy: NO_SHARD",
       "zero_stage=0\n"
       "fsdp_config.fsdp_sharding_strategy: NO_SHARD: imported as zero_stage: 0, for "
       "programs that do not set it"},
      {"fsdp_sharding_strategy: HYBRID_SHARD",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: HYBRID_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_sharding_strategy: to keep a copy of the parameters on each host "
       "(HSDP), set ShardingStrategy::kHybridShard in the program; results are the same "
       "without it"},
      {"fsdp_sharding_strategy: HYBRID_SHARD_ZERO2",
       "zero_stage=2\n"
       "fsdp_config.fsdp_sharding_strategy: HYBRID_SHARD_ZERO2: imported as zero_stage: "
       "2, for programs that do not set it"},
      {"fsdp_sharding_strategy: _HYBRID_SHARD_ZERO2",
       "zero_stage=2\n"
       "fsdp_config.fsdp_sharding_strategy: _HYBRID_SHARD_ZERO2: imported as zero_stage: "
       "2, for programs that do not set it"},
      {"fsdp_sharding_strategy: 1",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: 1: imported as zero_stage: 3, for programs "
       "that do not set it"},
      {"fsdp_sharding_strategy: 2",
       "zero_stage=2\n"
       "fsdp_config.fsdp_sharding_strategy: 2: imported as zero_stage: 2, for programs "
       "that do not set it"},
      {"fsdp_sharding_strategy: 3",
       "zero_stage=0\n"
       "fsdp_config.fsdp_sharding_strategy: 3: imported as zero_stage: 0, for programs "
       "that do not set it"},
      {"fsdp_sharding_strategy: 4",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: 4: imported as zero_stage: 3, for programs "
       "that do not set it\n"
       "fsdp_config.fsdp_sharding_strategy: to keep a copy of the parameters on each host "
       "(HSDP), set ShardingStrategy::kHybridShard in the program; results are the same "
       "without it"},
      {"fsdp_sharding_strategy: 5",
       "zero_stage=2\n"
       "fsdp_config.fsdp_sharding_strategy: 5: imported as zero_stage: 2, for programs "
       "that do not set it"},
      {"fsdp_sharding_strategy: 6",
       "[a.yaml:2:39] invalid value '6' for fsdp_config.fsdp_sharding_strategy; expected "
       "one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2"},
      {"fsdp_sharding_strategy: FUL_SHARD",
       "[a.yaml:2:39] invalid value 'FUL_SHARD' for fsdp_config.fsdp_sharding_strategy; "
       "expected one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
       "HYBRID_SHARD_ZERO2; did you mean 'FULL_SHARD'?"},
      {"fsdp_sharding_strategy: [1]",
       "[a.yaml:2:39] invalid value for fsdp_config.fsdp_sharding_strategy; got a list, "
       "expected one value"},
      {"fsdp_reshard_after_forward: SHARD_GRAD_OP",
       "zero_stage=2\n"
       "fsdp_config.fsdp_reshard_after_forward: SHARD_GRAD_OP: imported as zero_stage: 2, "
       "for programs that do not set it"},
      {"fsdp_reshard_after_forward: true",
       "[a.yaml:2:43] invalid value 'true' for fsdp_config.fsdp_reshard_after_forward; "
       "expected one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
       "HYBRID_SHARD_ZERO2"},
      {"fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_reshard_after_forward: true",
       "zero_stage=2\n"
       "fsdp_config.fsdp_sharding_strategy: SHARD_GRAD_OP: imported as zero_stage: 2, for "
       "programs that do not set it\n"
       "ignored: fsdp_config.fsdp_reshard_after_forward"},
      {"fsdp_version: 2, fsdp_reshard_after_forward: true",
       "zero_stage=3\n"
       "fsdp_config.fsdp_reshard_after_forward: true: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_version: 2, fsdp_reshard_after_forward: false",
       "zero_stage=2\n"
       "fsdp_config.fsdp_reshard_after_forward: false: imported as zero_stage: 2, for "
       "programs that do not set it"},
      {"fsdp_version: 2, fsdp_reshard_after_forward: FULL_SHARD",
       "[a.yaml:2:60] invalid value 'FULL_SHARD' for "
       "fsdp_config.fsdp_reshard_after_forward; expected true or false, as fsdp_version "
       "is 2"},
      {"fsdp_version: 2, fsdp_sharding_strategy: NO_SHARD",
       "zero_stage=3\n"
       "fsdp_config.fsdp_reshard_after_forward: true: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "ignored: fsdp_config.fsdp_sharding_strategy"},
      {"fsdp_version: 2, fsdp_sharding_strategy: SHARDY",
       "[a.yaml:2:56] invalid value 'SHARDY' for fsdp_config.fsdp_sharding_strategy; "
       "expected one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
       "HYBRID_SHARD_ZERO2"},
      {"sharding_strategy: NO_SHARD",
       "zero_stage=0\n"
       "fsdp_config.fsdp_sharding_strategy: NO_SHARD: imported as zero_stage: 0, for "
       "programs that do not set it"},
      {"sharding_strategy: NO_SHARD, fsdp_sharding_strategy: NO_SHARD",
       "[a.yaml:2:15] fsdp_config.sharding_strategy is another name of "
       "fsdp_config.fsdp_sharding_strategy; both are given; remove one"},
      {"fsdp_offload_params: true",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_offload_params: true: not imported; set FsdpPlugin::cpu_offload "
       "in the program; by default nothing is offloaded"},
      {"fsdp_offload_params: false",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_offload_params: maybe",
       "[a.yaml:2:36] invalid value 'maybe' for fsdp_config.fsdp_offload_params; expected "
       "true or false"},
      {"fsdp_auto_wrap_policy: NO_WRAP",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_auto_wrap_policy: size_based_wrap",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_auto_wrap_policy: size_based_wrap: not imported; set "
       "FsdpPlugin::auto_wrap_policy in the program; by default a bucket has a sixteenth "
       "of the model; results are the same"},
      {"fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP: not imported; set "
       "FsdpPlugin::auto_wrap_policy in the program; by default a bucket has a sixteenth "
       "of the model; results are the same"},
      {"fsdp_auto_wrap_policy: 1",
       "[a.yaml:2:38] invalid value '1' for fsdp_config.fsdp_auto_wrap_policy; expected "
       "one of TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP"},
      {"fsdp_auto_wrap_policy: NO_WRP",
       "[a.yaml:2:38] invalid value 'NO_WRP' for fsdp_config.fsdp_auto_wrap_policy; "
       "expected one of TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP; did you mean "
       "'NO_WRAP'?"},
      {"fsdp_min_num_params: 1000",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "ignored: fsdp_config.fsdp_min_num_params"},
      {"fsdp_min_num_params: many",
       "[a.yaml:2:36] invalid value 'many' for fsdp_config.fsdp_min_num_params; expected "
       "a whole number"},
      {"fsdp_transformer_layer_cls_to_wrap: \"A,B\"",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "ignored: fsdp_config.fsdp_transformer_layer_cls_to_wrap"},
      {"fsdp_backward_prefetch: BACKWARD_PRE",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_backward_prefetch: backward_post",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_backward_prefetch: backward_post: not imported; set "
       "FsdpPlugin::backward_prefetch in the program; the default is BACKWARD_PRE"},
      {"fsdp_backward_prefetch: NO_PREFETCH",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_backward_prefetch: NO_PREFETCH: not imported; set "
       "FsdpPlugin::backward_prefetch in the program; the default is BACKWARD_PRE"},
      {"fsdp_backward_prefetch: 1",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_backward_prefetch: 2",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_backward_prefetch: 2: not imported; set "
       "FsdpPlugin::backward_prefetch in the program; the default is BACKWARD_PRE"},
      {"fsdp_backward_prefetch: 3",
       "[a.yaml:2:39] invalid value '3' for fsdp_config.fsdp_backward_prefetch; expected "
       "one of BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH"},
      {"fsdp_state_dict_type: SHARDED_STATE_DICT",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_state_dict_type: FULL_STATE_DICT",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_state_dict_type: FULL_STATE_DICT: not imported; set "
       "FsdpPlugin::state_dict_type in the program; the default is SHARDED_STATE_DICT, "
       "which any number of processes can load"},
      {"fsdp_state_dict_type: local_state_dict",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_state_dict_type: local_state_dict: not imported; set "
       "FsdpPlugin::state_dict_type in the program; the default is SHARDED_STATE_DICT, "
       "which any number of processes can load"},
      {"fsdp_state_dict_type: 1",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_state_dict_type: 1: not imported; set "
       "FsdpPlugin::state_dict_type in the program; the default is SHARDED_STATE_DICT, "
       "which any number of processes can load"},
      {"fsdp_state_dict_type: 2",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_state_dict_type: 2: not imported; set "
       "FsdpPlugin::state_dict_type in the program; the default is SHARDED_STATE_DICT, "
       "which any number of processes can load"},
      {"fsdp_state_dict_type: 3",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_state_dict_type: FULL_STATE",
       "[a.yaml:2:37] invalid value 'FULL_STATE' for fsdp_config.fsdp_state_dict_type; "
       "expected one of FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT"},
      {"fsdp_ignored_modules: head",
       "[a.yaml:2:37] fsdp_config.fsdp_ignored_modules: head cannot be imported; every "
       "parameter of a prepared model is sharded and averaged; prepare a model without "
       "these modules, and delete the key"},
      {"fsdp_ignored_modules: null",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it"},
      {"fsdp_activation_checkpointing: true",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_activation_checkpointing: true: not imported; call "
       "activation_checkpoint(module, x) in the program"},
      {"fsdp_activation_checkpointing: maybe",
       "[a.yaml:2:46] invalid value 'maybe' for "
       "fsdp_config.fsdp_activation_checkpointing; expected true or false"},
      {"fsdp_activation_checkpointing_offload: true",
       "[a.yaml:2:54] invalid value 'true' for "
       "fsdp_config.fsdp_activation_checkpointing_offload; expected false, unless "
       "fsdp_activation_checkpointing is true and fsdp_version is 2"},
      {"fsdp_version: 2, fsdp_activation_checkpointing: true, "
       "fsdp_activation_checkpointing_offload: true",
       "zero_stage=3\n"
       "fsdp_config.fsdp_reshard_after_forward: true: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_activation_checkpointing: true: not imported; call "
       "activation_checkpoint(module, x) in the program\n"
       "fsdp_config.fsdp_activation_checkpointing_offload: true: not imported; open an "
       "ActivationCheckpointing::Scope with cpu_checkpointing in the program"},
      {"fsdp_forward_prefetch: true",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "ignored: fsdp_config.fsdp_forward_prefetch"},
      {"fsdp_forward_prefetch: maybe",
       "[a.yaml:2:38] invalid value 'maybe' for fsdp_config.fsdp_forward_prefetch; "
       "expected true or false"},
      {"fsdp_cpu_ram_efficient_loading: true",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "ignored: fsdp_config.fsdp_cpu_ram_efficient_loading"},
      {"fsdp_use_orig_params: false",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "ignored: fsdp_config.fsdp_use_orig_params"},
      {"fsdp_sync_module_states: false",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "ignored: fsdp_config.fsdp_sync_module_states"},
      {"fsdp_sync: true", "[a.yaml:2:15] unknown key 'fsdp_config.fsdp_sync'"},
      {"fsdp_activation_checkpointing: true, fsdp_cpu_ram_efficient_loading: true, "
       "fsdp_forward_prefetch: true, fsdp_min_num_params: 5, fsdp_sync_module_states: "
       "true, fsdp_transformer_layer_cls_to_wrap: A, fsdp_use_orig_params: true",
       "zero_stage=3\n"
       "fsdp_config.fsdp_sharding_strategy: FULL_SHARD: imported as zero_stage: 3, for "
       "programs that do not set it\n"
       "fsdp_config.fsdp_activation_checkpointing: true: not imported; call "
       "activation_checkpoint(module, x) in the program\n"
       "ignored: fsdp_config.fsdp_transformer_layer_cls_to_wrap\n"
       "ignored: fsdp_config.fsdp_min_num_params\n"
       "ignored: fsdp_config.fsdp_forward_prefetch\n"
       "ignored: fsdp_config.fsdp_use_orig_params\n"
       "ignored: fsdp_config.fsdp_sync_module_states\n"
       "ignored: fsdp_config.fsdp_cpu_ram_efficient_loading"},
  };
  for (const auto& [fsdp_config, expected] : cases) {
    EXPECT_EQ(imported_text(fsdp_config), expected) << fsdp_config;
  }
}

}  // namespace
}  // namespace lockstep::config
