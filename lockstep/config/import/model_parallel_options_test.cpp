// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import/model_parallel_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::config {
namespace {

using testing::HasSubstr;

/// Returns "mesh part", "zero 1", "nothing", "unknown", or the refusal.
std::string meaning_of(const std::optional<ModelParallelOption>& option) {
  if (!option) {
    return "unknown";
  }
  if (option->is_distributed_adam) {
    return "zero 1";
  }
  const std::string text = option->mesh_part + option->refusal;
  return text.empty() ? "nothing" : text;
}

TEST(ModelParallelOptions, DegreesOfMegatronArePartsOfAMesh) {
  EXPECT_EQ(meaning_of(megatron_option("tp_degree", "2")), "tp=2");
  EXPECT_EQ(meaning_of(megatron_option("pp_degree", "4")), "pp=4");
  EXPECT_EQ(meaning_of(megatron_option("context_parallel_size", "2")), "cp=2");
  EXPECT_EQ(meaning_of(megatron_option("expert_model_parallel_size", "2")), "ep=2");
  EXPECT_EQ(meaning_of(megatron_option("tp_degree", "1")), "nothing");
  EXPECT_EQ(meaning_of(megatron_option("use_distributed_optimizer", "True")), "zero 1");
  EXPECT_EQ(meaning_of(megatron_option("use_distributed_optimizer", "1")), "zero 1");
}

TEST(ModelParallelOptions, OthersOfMegatronAreRefusedUnlessTheyAreOff) {
  for (const char* name : {"sequence_parallelism", "recompute_activations", "eod_mask_loss"}) {
    EXPECT_EQ(meaning_of(megatron_option(name, "false")), "nothing") << name;
    EXPECT_THAT(meaning_of(megatron_option(name, "true")), HasSubstr("omit it")) << name;
    EXPECT_THAT(meaning_of(megatron_option(name, "1")), HasSubstr("omit it")) << name;
  }
  EXPECT_EQ(meaning_of(megatron_option("gradient_clipping", "0")), "nothing");
  EXPECT_THAT(
      meaning_of(megatron_option("gradient_clipping", "1.0")), HasSubstr("the program clips"));
  EXPECT_EQ(meaning_of(megatron_option("num_micro_batches", "1")), "nothing");
  EXPECT_THAT(
      meaning_of(megatron_option("num_micro_batches", "4")),
      HasSubstr("--gradient-accumulation-steps"));
  EXPECT_EQ(meaning_of(megatron_option("expert_tensor_parallel_size", "1")), "nothing");
  EXPECT_EQ(meaning_of(megatron_option("tp_degre", "2")), "unknown");
}

TEST(ModelParallelOptions, SizesOfAParallelismConfigArePartsOfAMesh) {
  EXPECT_EQ(meaning_of(parallelism_option("dp_shard_size", "2")), "dp_shard=2");
  EXPECT_EQ(meaning_of(parallelism_option("sp_size", "4")), "sp=4");
  EXPECT_EQ(meaning_of(parallelism_option("cp_size", "1")), "nothing");
  EXPECT_EQ(meaning_of(parallelism_option("ep_size", "2")), "unknown");
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"cp_backend", "torch"},
           {"cp_comm_strategy", "alltoall"},
           {"sp_backend", "deepspeed"},
           {"sp_seq_length_is_variable", "True"},
           {"sp_seq_length", "None"},
           {"sp_attn_implementation", "sdpa"}}) {
    EXPECT_EQ(meaning_of(parallelism_option(name, value)), "nothing") << name;
  }
}

TEST(ModelParallelOptions, OthersOfAParallelismConfigAreRefused) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"sp_seq_length", "256"},
           {"sp_seq_length_is_variable", "false"},
           {"sp_attn_implementation", "flash_attention_2"}}) {
    EXPECT_THAT(
        meaning_of(parallelism_option(name, value)), HasSubstr("DeepSpeedSequenceParallelConfig"))
        << name;
  }
  EXPECT_THAT(
      meaning_of(parallelism_option("cp_backend", "x")), HasSubstr("divides sequences by itself"));
}

}  // namespace
}  // namespace lockstep::config
