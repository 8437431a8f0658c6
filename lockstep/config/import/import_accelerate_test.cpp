// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import/import_accelerate.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/config/config_file.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::config {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;
using testing::UnorderedElementsAre;

const Environment kHome = Environment::of({{"HOME", "/home/me"}});

/// Imports a file that Accelerate 1.15 wrote, see tests/golden/make_config.py.
Import golden(const std::string& name) {
  return import_accelerate(
      read_document(LOCKSTEP_SOURCE_DIR "/tests/golden/config/" + name + ".yaml"), kHome);
}

Import import_of(const std::string& text) {
  return import_accelerate(parse_document("a.yaml", text, Format::kYaml), kHome);
}

std::string import_error(const std::string& text) {
  return error_of([&] { import_of(text); });
}

std::string golden_fault(const std::string& name) {
  return error_of([&] { golden(name); });
}

TEST(ImportAccelerate, ReadsTheFileOfConfigDefault) {
  for (const std::string precision : {"no", "fp16", "bf16"}) {
    const Import import = golden("basic_" + precision);
    EXPECT_THAT(
        import.values.settings,
        UnorderedElementsAre(
            Pair("mixed_precision", precision),
            Pair("num_processes", "1"),
            Pair("num_machines", "1"),
            Pair("machine_rank", "0"),
            Pair("debug", "false")));
    EXPECT_THAT(import.values.variables, ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "")));
    EXPECT_THAT(
        import.without_meaning,
        UnorderedElementsAre(
            "downcast_bf16",
            "main_training_function",
            "rdzv_backend",
            "same_network",
            "tpu_use_cluster",
            "tpu_use_sudo"));
    EXPECT_THAT(import.notes, ElementsAre(StartsWith("use_cpu: ")));
  }
}

TEST(ImportAccelerate, TakesAJobOfSeveralMachines) {
  EXPECT_THAT(
      golden("multi_cpu").values.settings,
      UnorderedElementsAre(
          Pair("num_processes", "4"),
          Pair("num_machines", "2"),
          Pair("machine_rank", "1"),
          Pair("main_process_ip", "10.0.0.1"),
          Pair("main_process_port", "29501"),
          Pair("mixed_precision", "bf16"),
          Pair("debug", "true")));
}

TEST(ImportAccelerate, ChoosesGpusAndCores) {
  const Import import = golden("multi_gpu");
  EXPECT_THAT(import.values.variables, ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "0,2")));
  EXPECT_EQ(import.values.settings.at("cpu_bind"), "numa");
  EXPECT_EQ(import.values.settings.at("mixed_precision"), "fp16");
}

TEST(ImportAccelerate, TakesMpirunsHostfile) {
  const Import import = golden("mpirun");
  EXPECT_EQ(import.values.settings.at("launcher"), "openmpi");
  EXPECT_EQ(import.values.settings.at("hostfile"), "/etc/hosts.mpi");
  EXPECT_THAT(import.without_meaning, Contains("mpirun_config.mpirun_ccl"));
}

TEST(ImportAccelerate, TakesDeepSpeedsValues) {
  const Import import = golden("deepspeed_inline");
  const auto& settings = import.values.settings;
  EXPECT_EQ(settings.at("gradient_accumulation_steps"), "4");
  EXPECT_EQ(settings.at("launcher"), "ssh");
  EXPECT_EQ(settings.at("hostfile"), "/job/hostfile");
  EXPECT_EQ(settings.at("include"), "node1:0,1@node2");
  EXPECT_EQ(settings.count("exclude"), 0U);
  EXPECT_EQ(settings.at("zero_stage"), "2");
  EXPECT_THAT(
      import.notes,
      UnorderedElementsAre(
          HasSubstr("clip_grad_norm_(parameters, 1.0)"),
          StartsWith("deepspeed_config.offload_optimizer_device: cpu: ")));
}

TEST(ImportAccelerate, FsdpStrategiesMapToZeroStages) {
  const Import golden_file = golden("fsdp");
  EXPECT_EQ(golden_file.values.settings.at("zero_stage"), "3");
  EXPECT_THAT(
      golden_file.notes,
      ElementsAre(
          HasSubstr("fsdp_config.fsdp_reshard_after_forward: true: imported as zero_stage: 3")));
  const std::string type = "distributed_type: FSDP\n";
  const auto stage_of = [&](const std::string& text) {
    return import_of(type + "fsdp_config: {" + text + "}\n").values.settings.at("zero_stage");
  };
  EXPECT_EQ(import_of(type).values.settings.at("zero_stage"), "3");
  EXPECT_EQ(stage_of("fsdp_version: 2, fsdp_reshard_after_forward: false"), "2");
  EXPECT_EQ(stage_of("fsdp_reshard_after_forward: SHARD_GRAD_OP"), "2");
  EXPECT_EQ(stage_of("fsdp_sharding_strategy: FULL_SHARD"), "3");
  EXPECT_EQ(stage_of("fsdp_sharding_strategy: 2"), "2");
  EXPECT_EQ(stage_of("fsdp_sharding_strategy: NO_SHARD"), "0");
  EXPECT_EQ(stage_of("fsdp_sharding_strategy: HYBRID_SHARD_ZERO2"), "2");
  EXPECT_EQ(stage_of("fsdp_sharding_strategy: HYBRID_SHARD"), "3");
  EXPECT_THAT(
      import_of(type + "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n").notes,
      Contains(HasSubstr("ShardingStrategy::kHybridShard")));
}

TEST(ImportAccelerate, OtherFsdpSettingsAreLeftToTheProgramAndListed) {
  const Import import = import_of(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: true\n"
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_transformer_layer_cls_to_wrap: Block\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
      "  fsdp_state_dict_type: FULL_STATE_DICT\n  fsdp_activation_checkpointing: false\n"
      "  fsdp_use_orig_params: true\n");
  EXPECT_THAT(
      import.notes,
      UnorderedElementsAre(
          HasSubstr("imported as zero_stage: 3"),
          HasSubstr("FsdpPlugin::cpu_offload"),
          HasSubstr("FsdpPlugin::auto_wrap_policy"),
          HasSubstr("FsdpPlugin::state_dict_type")));
  EXPECT_THAT(
      import.without_meaning,
      UnorderedElementsAre(
          "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "fsdp_config.fsdp_use_orig_params"));
  EXPECT_THAT(
      import_error("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SOME}\n"),
      AllOf(
          StartsWith("[a.yaml:2:39] "),
          HasSubstr("invalid value 'SOME' for fsdp_config.fsdp_sharding_strategy; expected one of "
                    "FULL_SHARD")));
  EXPECT_THAT(
      import_error("distributed_type: FSDP\nfsdp_config: {fsdp_shard: x}\n"),
      HasSubstr("unknown key 'fsdp_config.fsdp_shard'"));
  EXPECT_THAT(
      import_of("distributed_type: MULTI_CPU\nfsdp_config: {fsdp_version: 1}\n").without_meaning,
      Contains("fsdp_config"));
}

TEST(ImportAccelerate, UnknownFsdpValuesAreErrors) {
  const std::string type = "distributed_type: FSDP\nfsdp_config: ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"fsdp_sharding_strategy: SHARDY",
       "[a.yaml:2:39] invalid value 'SHARDY' for fsdp_config.fsdp_sharding_"},
      {"fsdp_sharding_strategy: FUL_SHARD", "did you mean 'FULL_SHARD'?"},
      {"fsdp_version: 2, fsdp_sharding_strategy: SHARDY",
       "invalid value 'SHARDY' for fsdp_config.fsdp_sharding_strategy; expected one of FULL_"},
      {"fsdp_version: 2, fsdp_reshard_after_forward: SHARDY",
       "invalid value 'SHARDY' for fsdp_config.fsdp_reshard_after_forward; expected true or"},
      {"fsdp_auto_wrap_policy: TRANS_WRAP",
       "invalid value 'TRANS_WRAP' for fsdp_config.fsdp_auto_wrap_policy; expected one of "
       "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP"},
      {"fsdp_auto_wrap_policy: no_wrp", "did you mean 'NO_WRAP'?"},
      {"fsdp_backward_prefetch: BEFORE", "expected one of BACKWARD_PRE, BACKWARD_POST, NO_PREFET"},
      {"fsdp_backward_prefetch: 3",
       "invalid value '3' for fsdp_config.fsdp_backward_prefetch; expected one of BACKWARD_PRE"},
      {"fsdp_state_dict_type: SHARDY",
       "invalid value 'SHARDY' for fsdp_config.fsdp_state_dict_type; expected one of "
       "FULL_STATE_DICT"},
      {"fsdp_offload_params: maybe",
       "invalid value 'maybe' for fsdp_config.fsdp_offload_params; expected true or false"},
      {"fsdp_use_orig_params: maybe",
       "invalid value 'maybe' for fsdp_config.fsdp_use_orig_params; expected true or false"},
      {"fsdp_min_num_params: many",
       "invalid value 'many' for fsdp_config.fsdp_min_num_params; expected a whole number"},
      {"fsdp_version: 3", "invalid value '3' for fsdp_config.fsdp_version; expected 1 or 2"},
      {"fsdp_ignored_modules: head.*", "fsdp_ignored_modules: head.* cannot be imported"},
      {"fsdp_activation_checkpointing_offload: true",
       "expected false, unless fsdp_activation_checkpointing is true and fsdp_version is 2"},
      {"x: 1", "unknown key 'fsdp_config.x'"},
      {"sharding_strategy: FULL_SHARD, fsdp_sharding_strategy: NO_SHARD",
       "fsdp_config.sharding_strategy is another name of fsdp_config.fsdp_sharding_strategy"}};
  for (const auto& [keys, what] : cases) {
    EXPECT_THAT(import_error(type + "{" + keys + "}\n"), HasSubstr(what)) << keys;
  }
  const Import import = import_of(
      type +
      "{sharding_strategy: shard_grad_op, backward_prefetch: 1, state_dict_type: 3,\n"
      "  offload_params: 'False', ignored_modules: null, auto_wrap_policy: no_wrap}\n");
  EXPECT_EQ(import.values.settings.at("zero_stage"), "2");
  EXPECT_THAT(import.notes, ElementsAre(HasSubstr("imported as zero_stage: 2")));
}

/// What Accelerate's own tests and examples configure, by what is special in each file; its own
/// names of the files.
TEST(ImportAccelerate, TakesOrRefusesEveryFileOfAcceleratesTests) {
  const std::string local = "compute_environment: LOCAL_MACHINE\n";
  const std::string fsdp =
      "distributed_type: FSDP\nnum_processes: 1\nfsdp_config: {fsdp_activation_checkpointing: "
      "false, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_offload_params: false, "
      "fsdp_state_dict_type: SHARDED_STATE_DICT, ";
  const std::vector<std::pair<std::string, std::string>> taken = {
      {"0_11_0, 0_12_0",
       local + "distributed_type: 'NO'\ndeepspeed_config: {}\nfsdp_config: {}\n"
               "main_process_ip: null\nmain_process_port: null\nmixed_precision: 'no'\n"},
      {"latest, downcast",
       "distributed_type: 'NO'\nmegatron_lm_config: {}\ndowncast_bf16: 'no'\ngpu_ids: all\n"
       "tpu_name: a\ntpu_zone: b\ncommands: null\ncommand_file: c.sh\nrdzv_backend: static\n"},
      {"latest_fsdp",
       local + fsdp +
           "fsdp_backward_prefetch: BACKWARD_PRE, fsdp_cpu_ram_efficient_loading: true, "
           "fsdp_forward_prefetch: false, fsdp_ignored_modules: null, fsdp_sharding_strategy: "
           "FULL_SHARD, fsdp_sync_module_states: true, fsdp_transformer_layer_cls_to_wrap: "
           "BertLayer, fsdp_use_orig_params: true}\n"},
      {"0_28_0_mpi",
       "distributed_type: MULTI_CPU\nmpirun_config: {mpirun_ccl: '1', mpirun_hostfile: /h}\n"
       "num_machines: 4\nnum_processes: 16\nuse_cpu: true\ntpu_env: []\n"},
      {"debug, one_proc", local + "debug: True\nnum_processes: 1\ndistributed_type: 'NO'\n"},
      {"validate_launch_cmd",
       "distributed_type: 'NO'\nfsdp_config: {fsdp_sync_module_states: false}\n"
       "deepspeed_config: {deepspeed_config_file: path/to/be/ignored}\n"},
      {"fsdp2", local + "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n"},
      {"nd without context parallelism",
       fsdp + "fsdp_reshard_after_forward: true, fsdp_version: 2}\nparallelism_config: "
              "{parallelism_config_cp_size: 1, parallelism_config_dp_replicate_size: 2, "
              "parallelism_config_dp_shard_size: 2, parallelism_config_tp_size: 1}\n"}};
  for (const auto& [name, text] : taken) {
    EXPECT_EQ(import_error(text), "no error") << name;
  }
  const std::vector<std::vector<std::string>> refused = {
      {"0_30_0_sagemaker",
       "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n",
       "compute_environment AMAZON_SAGEMAKER cannot be imported"},
      {"0_34_0_fp8",
       "distributed_type: MULTI_GPU\nmixed_precision: fp8\nfp8_config: {backend: TE}\n",
       "mixed_precision fp8 cannot be imported"},
      {"megatron",
       "distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_recompute_activations: "
       "true}\n",
       "megatron_lm_recompute_activations true cannot be imported: the model checkpoints"},
      {"another slip",
       "distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_tp_degre: 2}\n",
       "unknown key 'megatron_lm_config.megatron_lm_tp_degre'; did you mean"},
      {"a length",
       "distributed_type: MULTI_GPU\nparallelism_config: {sp_size: 2, sp_seq_length: 256}\n",
       "sp_seq_length 256 cannot be imported"},
      {"invalid_keys", "distributed_type: 'NO'\ninvalid_key: \"a\"\n", "unknown key 'invalid_key'"},
      {"both divisions of a sequence",
       fsdp + "fsdp_version: 2}\nparallelism_config: {cp_size: 4, sp_size: 2}\n",
       "cp = 4 and sp = 2, which both divide the sequence"},
      {"a slip",
       fsdp + "fsdp_version: 2}\nparallelism_config: {parallelism_config_dp_shardsize: 4}\n",
       "unknown key 'parallelism_config.parallelism_config_dp_shardsize'; did you mean"}};
  for (const std::vector<std::string>& each : refused) {
    EXPECT_THAT(import_error(each[1]), HasSubstr(each[2])) << each[0];
  }
}

TEST(ImportAccelerate, EveryGoldenFileThatIsTakenIsAValidConfiguration) {
  for (const char* name :
       {"basic_no", "multi_cpu", "multi_gpu", "mpirun", "deepspeed_inline", "dynamo", "fsdp"}) {
    const std::string text = render_config(golden(name).values);
    EXPECT_THAT(faults_of(parse_document(name, text, Format::kYaml)), IsEmpty()) << text;
  }
}

TEST(ImportAccelerate, RefusesUnsupportedSettingsAndSaysWhy) {
  EXPECT_THAT(
      golden_fault("tpu"), HasSubstr("cannot be imported; Lockstep supports only CPUs and CUDA"));
  EXPECT_THAT(golden_fault("fp8"), HasSubstr("fp16 or bf16; try bf16"));
  EXPECT_THAT(
      import_error(
          "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\niam_role_name: x\n"),
      StartsWith("[a.yaml:1:22] compute_environment AMAZON_SAGEMAKER cannot be imported"));
  EXPECT_THAT(
      import_error("distributed_type: MULTI_XPU\n"), HasSubstr("only CPUs and CUDA devices"));
  EXPECT_THAT(
      import_error("distributed_type: MULTI_GPU\nparallelism_config:\n"
                   "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_tp_size: x\n"),
      StartsWith("[a.yaml:4:31] tp is 'x'; expected a number of ranks"));
}

TEST(ImportAccelerate, TheSizesOfAMeshBecomeOneSetting) {
  const auto settings =
      import_of(
          "distributed_type: FSDP\nparallelism_config:\n"
          "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_tp_size: 4\n"
          "  parallelism_config_cp_size: 2\n")
          .values.settings;
  EXPECT_EQ(settings.at("mesh"), "tp=4,cp=2");
}

TEST(ImportAccelerate, DegreesOfMegatronBecomeAMesh) {
  const Import import = import_of(
      "distributed_type: MEGATRON_LM\nnum_processes: 4\nmegatron_lm_config:\n"
      "  megatron_lm_gradient_clipping: 1.0\n  megatron_lm_num_micro_batches: 1\n"
      "  megatron_lm_pp_degree: 1\n  megatron_lm_recompute_activations: false\n"
      "  megatron_lm_sequence_parallelism: false\n  megatron_lm_tp_degree: 2\n"
      "  megatron_lm_use_distributed_optimizer: true\n");
  EXPECT_EQ(import.values.settings.at("mesh"), "tp=2");
  EXPECT_EQ(import.values.settings.at("zero_stage"), "1");
  EXPECT_THAT(
      import.notes, ElementsAre(HasSubstr("megatron_lm_gradient_clipping: 1.0: not imported")));
}

TEST(ImportAccelerate, TakesAnUnquotedNo) {
  const std::string type = "distributed_type: NO\n";
  EXPECT_EQ(import_of(type + "mixed_precision: no\n").values.settings.at("mixed_precision"), "no");
  EXPECT_EQ(
      import_of(type + "mixed_precision: false\n").values.settings.at("mixed_precision"), "no");
  EXPECT_EQ(
      import_of(type + "mixed_precision: BF16\n").values.settings.at("mixed_precision"), "bf16");
  EXPECT_EQ(import_of(type + "fp16: true\n").values.settings.at("mixed_precision"), "fp16");
  EXPECT_EQ(import_of(type + "mixed_precision:\n").values.settings.count("mixed_precision"), 0U);
}

TEST(ImportAccelerate, RefusesTheFilesThatAccelerateRefuses) {
  EXPECT_THAT(
      import_error("distributed_type: MULTI_CPU\nnum_procesess: 2\n"),
      StartsWith("[a.yaml:2:1] unknown key 'num_procesess', which Accelerate 1.15 does not have; "
                 "did you mean 'num_processes'?"));
  EXPECT_THAT(import_error("num_processes: 2\n"), HasSubstr("not a configuration of Accelerate"));
  EXPECT_THAT(
      import_error("distributed_type: MULTI_CUP\n"), HasSubstr("did you mean 'MULTI_CPU'?"));
  EXPECT_THAT(
      import_error("distributed_type: MULTI_CPU\nnum_processes: two\n"),
      StartsWith("[a.yaml:2:16] invalid value 'two' for num_processes"));
  EXPECT_THAT(
      import_error("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stag: 2}\n"),
      HasSubstr("unknown key 'deepspeed_config.zero_stag'; did you mean 'zero_stage'?"));
  EXPECT_THAT(
      import_error(
          "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_multinode_launcher: mpich}\n"),
      HasSubstr("deepspeed_multinode_launcher mpich cannot be imported"));
  EXPECT_THAT(
      import_error("distributed_type: MULTI_CPU\nuse_cpu: [1]\n"),
      HasSubstr("got a list, expected one"));
  EXPECT_THAT(
      import_error("distributed_type: MULTI_CPU\nmpirun_config: x\n"),
      HasSubstr("keys and values"));
}

TEST(ImportAccelerate, QuotedNumbersAreNumbers) {
  const Import import =
      import_of("distributed_type: MULTI_CPU\nnum_processes: '2'\nmain_process_port: \"29500\"\n");
  EXPECT_EQ(import.values.settings.at("num_processes"), "2");
  EXPECT_EQ(import.values.settings.at("main_process_port"), "29500");
}

TEST(ImportAccelerate, OneProcessIsOneProcess) {
  const Import import = import_of("distributed_type: 'NO'\nnum_processes: 4\n");
  EXPECT_EQ(import.values.settings.at("num_processes"), "1");
  EXPECT_THAT(import.notes, ElementsAre(HasSubstr("num_processes: 4: imported as 1")));
  const Import open = import_of("distributed_type: MULTI_CPU\nnum_processes: -1\n");
  EXPECT_EQ(open.values.settings.count("num_processes"), 0U);
}

class ImportDeepSpeedFile : public testing::Test {
 protected:
  /// With a JSON of this text.
  Import import_with(const std::string& json, const std::string& more = "") {
    std::ofstream(folder_ / "ds.json") << json;
    return import_of(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: " + path() +
        "\n" + more);
  }
  std::string fault_with(const std::string& json, const std::string& more = "") {
    return error_of([&] { import_with(json, more); });
  }
  std::string path() const { return (folder_ / "ds.json").native(); }

  TestFolder folder_;
};

TEST_F(ImportDeepSpeedFile, GivesPrecisionAndAccumulation) {
  const Import import = import_with(
      R"({"bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 0},
          "gradient_accumulation_steps": 8, "gradient_clipping": 0.5,  # as DeepSpeed, not strictly
          "zero_optimization": {"stage": 2},})");
  EXPECT_THAT(
      import.values.settings,
      UnorderedElementsAre(
          Pair("mixed_precision", "bf16"),
          Pair("gradient_accumulation_steps", "8"),
          Pair("zero_stage", "2"),
          Pair("deepspeed_config_file", path())));
  EXPECT_THAT(import.notes, ElementsAre(StartsWith("gradient_clipping: 0.5 of ")));
}

TEST_F(ImportDeepSpeedFile, OffloadIsForTheProgramToAskFor) {
  const Import import = import_with(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"},
          "offload_param": {"device": "none"}}})");
  EXPECT_THAT(
      import.notes,
      ElementsAre(StartsWith("zero_optimization.offload_optimizer.device: nvme of ")));
}

TEST_F(ImportDeepSpeedFile, AutoUsesOtherSources) {
  const Import import = import_with(
      R"({"fp16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto",
          "gradient_clipping": "auto", "zero_optimization": {"stage": "auto"}})",
      "mixed_precision: fp16\n");
  EXPECT_EQ(import.values.settings.at("mixed_precision"), "fp16");
  EXPECT_EQ(import.values.settings.count("gradient_accumulation_steps"), 0U);
  EXPECT_EQ(import.values.settings.count("zero_stage"), 0U);
  EXPECT_THAT(import.notes, IsEmpty());
}

TEST_F(ImportDeepSpeedFile, RefusesContradictions) {
  EXPECT_THAT(
      fault_with(R"({"fp16": {"enabled": true}})", "mixed_precision: bf16\n"),
      AllOf(StartsWith("[" + path() + ":1:22]"), HasSubstr("got fp16 here and bf16 (a.yaml:4:1)")));
  EXPECT_THAT(
      fault_with(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
      HasSubstr("two mixed precisions"));
  EXPECT_THAT(
      fault_with("{\"fp16\": {\"enabled\": true},,}"), HasSubstr("ds.json:1:28] invalid JSON"));
  EXPECT_THAT(
      fault_with(R"({"gradient_accumulation_steps": 0})"),
      HasSubstr("ds.json:1:33] invalid value '0' for gradient_accumulation_steps"));
}

TEST_F(ImportDeepSpeedFile, MustBeThere) {
  EXPECT_THAT(
      import_error(
          "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: no.json}\n"),
      AllOf(StartsWith("[a.yaml:2:43] no such file: "), HasSubstr("/no.json; a relative path")));
}

TEST(AccelerateConfigPath, IsWhereAccelerateKeepsIt) {
  EXPECT_EQ(
      accelerate_config_path(kHome), "/home/me/.cache/huggingface/accelerate/default_config.yaml");
  EXPECT_EQ(
      accelerate_config_path(Environment::of({{"XDG_CACHE_HOME", "/c"}})),
      "/c/huggingface/accelerate/default_config.yaml");
  EXPECT_EQ(
      accelerate_config_path(Environment::of({{"HF_HOME", "/hf"}, {"XDG_CACHE_HOME", "/c"}})),
      "/hf/accelerate/default_config.yaml");
}

}  // namespace
}  // namespace lockstep::config
