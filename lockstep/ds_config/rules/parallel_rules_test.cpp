// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Returns the section with autotp_size 2.
std::string section(const std::string& keys) {
  return R"("tensor_parallel": {"autotp_size": 2, )" + keys + "}";
}

std::string specs(const std::string& specs) {
  return section(R"("partition_config": {"layer_specs": [)" + specs + "]}");
}

std::string errors_on_four(const std::string& keys) {
  return errors_of(keys, 4);
}

TEST(DsConfigParallel, RanksThatShareASampleAreNotInTheBatchSize) {
  const DsConfig config =
      reading_with(R"("tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2)", 8)
          .config;
  EXPECT_EQ(config.batch.train_batch_size.value, 4 * 2);
  EXPECT_EQ(config.ranks_of_sample(), 4);
  EXPECT_EQ(reading_with(R"("tensor_parallel": {})", 8).config.batch.train_batch_size.value, 32);
  EXPECT_EQ(errors_of(R"("tensor_parallel": {"autotp_size": 2}, "data_parallel_size": 4)", 8), "");
  EXPECT_THAT(
      errors_of(R"("tensor_parallel": {"autotp_size": 2}, "data_parallel_size": 8)", 8),
      HasSubstr("data_parallel_size is 8, but 4 ranks have samples of their own"));
  EXPECT_THAT(
      errors_of(R"("tensor_parallel": {"autotp_size": 3})", 8),
      HasSubstr("tensor_parallel.autotp_size does not divide the ranks"));
}

TEST(DsConfigParallel, LayersAreThoseOfTheFileThenOfThePreset) {
  const std::string keys = section(
      R"("preset_model": "Llama", "partition_config": {"strict_mode": true, "layer_specs": [
        {"patterns": [".*qkv.*"], "shape": [[8, 4, 4], -1], "partition_dim": 0},
        {"patterns": ["out"], "partition_type": "ROW", "shape": [-1, 3]},
        {"patterns": ["head"], "gather_output": true},
        {"patterns": ["norm"], "partition_type": "skip", "grad_allreduce": true}]})");
  EXPECT_EQ(errors_on_four(keys), "");
  const TensorParallelSection read = reading_with(keys, 4).config.tensor_parallel;
  ASSERT_EQ(read.layers->size(), 8);
  const std::vector<LayerSpec>& layers = *read.layers;
  EXPECT_THAT(layers[0].fused, ElementsAre(8, 4, 4));
  EXPECT_EQ(layers[1].partition, LayerPartition::kRow);
  EXPECT_THAT(layers[1].fused, ElementsAre(1, 1, 1));
  EXPECT_TRUE(layers[2].gather_output);
  EXPECT_TRUE(layers[3].grad_allreduce);
  EXPECT_EQ(layers[4], preset_layers("llama")[0]);
  EXPECT_TRUE(read.strict_mode.value);
  const std::string alone = section(
      R"("preset_model": "phi3", "partition_config": {"use_default_specs": false, "layer_specs": [{"patterns": ["x"]}]})");
  EXPECT_EQ(reading_with(alone, 4).config.tensor_parallel.layers->size(), 1);
  EXPECT_EQ(
      reading_with(section(R"("preset_model": "bloom")"), 4).config.tensor_parallel.layers->size(),
      4);
  EXPECT_FALSE(reading_with(R"("gradient_clipping": 1)").config.tensor_parallel.layers);
}

TEST(DsConfigParallel, SpecsThatCannotBeHonouredAreErrors) {
  const auto expect = [](const std::string& spec, const std::string& message) {
    EXPECT_THAT(errors_on_four(specs(spec)), HasSubstr(message)) << spec;
  };
  expect(R"({"patterns": []})", "patterns is empty");
  expect(R"x({"patterns": ["(?P<x>a)"]})x", "is not a regular expression");
  expect(R"({"patterns": ["weight\\\\Z"]})", "which only Python's regular expressions know");
  expect(R"({"patterns": ["a"], "shape": [4, -1, 8]})", "other shapes are not divided");
  expect(R"({"patterns": ["a"], "shape": [-1, 3]})", "other shapes are not divided");
  expect(R"({"patterns": ["a"], "partition_dim": 1})", "partition_dim is 1; expected 0");
  expect(R"({"patterns": ["a"], "model_types": ["llama"]})", "model_types is refused");
  expect(R"({"patterns": ["a"], "pattern": "b"})", "unknown key");
  expect(
      R"({"patterns": ["a"], "partition_type": "row", "gather_output": true})",
      "gather_output is true");
  expect(R"({"patterns": ["a"], "grad_allreduce": true})", "grad_allreduce is true");
  expect(R"({"patterns": ["a"], "partition_type": "rows"})", "expected one of");
}

TEST(DsConfigParallel, KeysThatCannotBeHonouredAreRefusedUnlessTheyStateTheDefault) {
  EXPECT_EQ(
      errors_on_four(section(
          R"("tp_overlap_comm": false, "vocab_parallel_lm_head": null, "keep_module_on_host": false,
             "kernel_inject": false, "vocab_parallel_ce_backend": "torch", "dtype": "fp32",
             "tp": {"tp_size": 2, "tp_grain_size": 1, "tp_group": null, "mpu": null})")),
      "");
  for (const std::string key :
       {R"("tp_overlap_comm": true)",
        R"("vocab_parallel_lm_head": true)",
        R"("vocab_parallel_ce_backend": "liger")",
        R"("keep_module_on_host": true)",
        R"("kernel_inject": true)",
        R"("injection_policy_tuple": ["a"])",
        R"("tp": {"tp_grain_size": 64})",
        R"("partition_config": {"embedding_partition_dim": 0})"}) {
    EXPECT_THAT(errors_on_four(section(key)), HasSubstr("is refused")) << key;
  }
  EXPECT_THAT(
      errors_on_four(section(R"("dtype": "bf16")")),
      HasSubstr("tensor_parallel.dtype is bf16, but the file computes in fp32"));
  EXPECT_THAT(
      errors_on_four(section(R"("tp": {"tp_size": 4})")),
      HasSubstr("tensor_parallel.tp.tp_size is 4, but tensor_parallel.autotp_size is 2"));
}

}  // namespace
}  // namespace lockstep::ds_config
