// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string zero(const std::string& keys) {
  return "\"zero_optimization\": {" + keys + "}";
}

TEST(ZeroSection, ATruthIsTheOldWayToWriteAStage) {
  const Reading on = reading_with("\"zero_optimization\": true, \"allgather_size\": 5e8");
  EXPECT_EQ(lines_of(on.errors), "");
  EXPECT_EQ(on.config.zero.plugin.stage, 1);
  EXPECT_EQ(described(on.config.zero.origins.at("zero_optimization.stage")), "ds.json:2:22");
  EXPECT_THAT(
      lines_of(on.notes),
      HasSubstr("zero_optimization: true is the old form of stage 1; write {\"stage\": 1}"));
  const Reading off = reading_with("\"zero_optimization\": false");
  EXPECT_EQ(off.config.zero.plugin.stage, 0);
  EXPECT_THAT(lines_of(off.notes), HasSubstr("write {\"stage\": 0}"));
  // What DeepSpeed itself makes of it: tests/golden/make_ds_config.py.
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/ds_config.json");
  const nlohmann::json golden = nlohmann::json::parse(file).at("zero_bool");
  EXPECT_EQ(on.config.zero.plugin.stage, golden.at("true"));
  EXPECT_EQ(off.config.zero.plugin.stage, golden.at("false"));
}

TEST(ZeroSection, AStageInQuotesIsThatStage) {
  const Reading reading = reading_with(R"("zero_optimization": {"stage": "2"})");
  EXPECT_EQ(lines_of(reading.errors), "");
  EXPECT_EQ(reading.config.zero.plugin.stage, 2);
  EXPECT_EQ(described(reading.config.zero.origins.at("zero_optimization.stage")), "ds.json:2:32");
  EXPECT_THAT(
      lines_of(reading.notes),
      HasSubstr("[ds.json:2:32] zero_optimization.stage is \"2\" in quotes and counts as 2"));
}

TEST(ZeroSection, OldNamesMeanTheNewOnesAndAreNoted) {
  const Reading reading = reading_with(zero(R"("stage": 3, "prefetch_bucket_size": 0,
    "max_live_parameters": 10)"));
  EXPECT_EQ(lines_of(reading.errors), "");
  const ZeroSection& section = reading.config.zero;
  EXPECT_EQ(section.prefetch_bucket_size.value, 0);
  EXPECT_EQ(section.plugin.stage3_max_live_parameters, 10);
  EXPECT_EQ(
      described(section.origins.at("zero_optimization.stage3_max_live_parameters")),
      "ds.json:3:28, as max_live_parameters");
  EXPECT_THAT(
      lines_of(reading.notes),
      HasSubstr("zero_optimization.max_live_parameters is another name of "
                "zero_optimization.stage3_max_live_parameters; write "
                "zero_optimization.stage3_max_live_parameters\n"));
}

TEST(ZeroSection, AnOldNameTogetherWithTheNewOneIsAnError) {
  EXPECT_THAT(
      errors_of(
          zero("\"stage\": 3, \"max_live_parameters\": 1,\n\"stage3_max_live_parameters\": 1")),
      HasSubstr("[ds.json:2:35] zero_optimization.max_live_parameters is another name of "
                "zero_optimization.stage3_max_live_parameters, which line 3 sets already; remove "
                "max_live_parameters\n"));
  EXPECT_THAT(
      errors_of("\"bf16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": true}"),
      HasSubstr("bfloat16 is another name of bf16"));
  EXPECT_THAT(
      errors_of(zero(R"("stage": 3, "gather_16bit_weights_on_model_save": true,
        "stage3_gather_fp16_weights_on_model_save": false)")),
      HasSubstr("which line 3 sets already; remove gather_16bit_weights_on_model_save\n"));
}

TEST(ZeroSection, OffloadingSaysWhereToAndHow) {
  const Reading reading = reading_with(zero(R"("stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/x", "ratio": 1, "buffer_count": 8,
      "pipeline_read": false, "pin_memory": false},
    "offload_param": {"device": "cpu", "max_in_cpu": 1e6})"));
  EXPECT_EQ(lines_of(reading.errors), "");
  const ZeroSection& section = reading.config.zero;
  EXPECT_EQ(section.plugin.offload_optimizer.device, OffloadDevice::kNvme);
  EXPECT_EQ(section.plugin.offload_optimizer.nvme_path, "/x");
  EXPECT_EQ(section.plugin.offload_optimizer.buffer_count, 8);
  EXPECT_EQ(section.plugin.offload_optimizer.pipeline_read, false);
  EXPECT_EQ(section.plugin.offload_optimizer.pipeline_write, std::nullopt);
  EXPECT_FALSE(section.plugin.offload_optimizer.pin_memory);
  EXPECT_EQ(section.plugin.offload_param.device, OffloadDevice::kCpu);
  EXPECT_EQ(section.plugin.offload_param.max_in_cpu, 1'000'000);
  for (const std::string name : {"offload_optimizer", "offload_param"}) {
    EXPECT_THAT(
        errors_of(zero("\"" + name + "\": {\"device\": \"gpu\"}")),
        HasSubstr(
            "invalid value for zero_optimization." + name +
            ".device; got \"gpu\" in quotes, expected one of \"none\""));
    EXPECT_EQ(errors_of(zero("\"" + name + "\": {\"device\": \"none\"}")), "");
    EXPECT_EQ(errors_of(zero("\"" + name + "\": {}")), "");
    EXPECT_EQ(errors_of(zero("\"" + name + "\": null")), "");
  }
}

TEST(ZeroSection, OffloadingNeedsAStageAndAFolder) {
  const std::string cpu = R"({"device": "cpu"})";
  EXPECT_EQ(errors_of(zero(R"("stage": 1, "offload_optimizer": )" + cpu)), "");
  EXPECT_THAT(
      errors_of(zero(R"("offload_optimizer": )" + cpu)),
      HasSubstr(
          "offload_optimizer.device offloads parameters that are not sharded in stage 0; expected "
          "stage 1 or more"));
  EXPECT_THAT(
      errors_of(
          zero(R"("stage": 2, "offload_optimizer": {"device": "cpu"}, "offload_param": )" + cpu)),
      HasSubstr(
          "offload_param.device offloads parameters that are not sharded in stage 2; expected "
          "stage 3\n"));
  EXPECT_THAT(
      errors_of(zero(R"("stage": 3, "offload_optimizer": {"device": "nvme"})")),
      HasSubstr("offload_optimizer.device nvme needs nvme_path"));
  EXPECT_THAT(
      notes_of(zero(R"("stage": 2, "offload_optimizer": {"device": "cpu", "nvme_path": "/x"})")),
      HasSubstr("nvme_path is ignored: the device is cpu"));
}

TEST(ZeroSection, OffloadedParametersAreUpdatedOnTheHost) {
  const std::string adam = R"("optimizer": {"type": "Adam", "params": {"lr": 1}}, )";
  for (const std::string param :
       {R"("offload_param": {"device": "cpu"})", R"("cpu_offload_param": true)"}) {
    const std::string file = adam + zero(R"("stage": 3, )" + param);
    EXPECT_EQ(errors_of(file), "") << param;
    EXPECT_THAT(notes_of(file), HasSubstr("the optimizer's state is on the cpu, too")) << param;
    EXPECT_EQ(reading_with(file).config.zero.plugin.offload_optimizer.device, OffloadDevice::kCpu);
  }
  EXPECT_THAT(
      errors_of(adam + zero(R"("stage": 3, "offload_param": {"device": "cpu"},
            "offload_optimizer": {"device": "none"})")),
      HasSubstr("offload_param.device needs offload_optimizer if the file has an optimizer"));
  EXPECT_EQ(errors_of(zero(R"("stage": 3, "offload_param": {"device": "cpu"})")), "")
      << "without an optimizer nothing is updated: inference";
  EXPECT_THAT(
      errors_of(zero(R"("stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5},
        "offload_param": {"device": "cpu"})")),
      HasSubstr("offload_optimizer.ratio below 1 keeps a part of the update on the device"));
  EXPECT_THAT(
      errors_of(zero(R"("stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0})")),
      HasSubstr("offload_optimizer.ratio 0 offloads nothing; write device none"));
  EXPECT_THAT(
      errors_of(zero(
          R"("stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/x", "super_offload": true})")),
      HasSubstr("offload_optimizer.super_offload starts updates during backward, on state in "
                "the host's memory; got device nvme, expected cpu"));
  EXPECT_THAT(
      errors_of(zero(
          R"("stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": true},
          "offload_param": {"device": "nvme", "nvme_path": "/x"})")),
      HasSubstr("super_offload updates parameters in memory during backward and cannot be "
                "combined with offload_param"));
  EXPECT_THAT(
      errors_of(zero(R"("offload_optimizer": {"ratio": 2})")),
      HasSubstr("invalid value for zero_optimization.offload_optimizer.ratio; got 2, expected a "
                "number from 0 to 1\n"));
}

TEST(ZeroSection, TheOldTruthsOfOffloadingAreTheNewSections) {
  const Reading both = reading_with(zero(R"("stage": 3, "cpu_offload": true,
    "cpu_offload_param": true, "cpu_offload_use_pin_memory": true)"));
  EXPECT_EQ(lines_of(both.errors), "");
  const ZeroSection& section = both.config.zero;
  EXPECT_EQ(section.plugin.offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_EQ(section.plugin.offload_param.device, OffloadDevice::kCpu);
  EXPECT_EQ(
      described(section.origins.at("zero_optimization.offload_param.device")), "ds.json:3:26");
  for (const auto& [name, now] :
       {std::pair("cpu_offload", "offload_optimizer"),
        std::pair("cpu_offload_param", "offload_param")}) {
    EXPECT_THAT(
        lines_of(both.notes),
        HasSubstr(
            std::string("zero_optimization.") + name + ": true is the old form; write \"" + now +
            "\": {\"device\": \"cpu\"}\n"));
    const std::string key = std::string("\"") + name + "\"";
    EXPECT_EQ(errors_of(zero(key + ": false")), "");
    EXPECT_EQ(errors_of(zero(key + ": null")), "");
    EXPECT_EQ(errors_of(zero(key + ": \"auto\"")), "");
    EXPECT_THAT(
        errors_of(zero(
            "\"stage\": 3, \"" + std::string(now) + "\": {\"device\": \"none\"},\n" + key +
            ": false")),
        HasSubstr(
            std::string("[ds.json:3:1] zero_optimization.") + name +
            " is the old form of zero_optimization." + now + ", which line 2 sets already; "));
  }
}

TEST(ZeroSection, TheOldTruthsOfOffloadingGoWithTheSameStages) {
  EXPECT_THAT(
      errors_of(zero(R"("cpu_offload": true)")),
      HasSubstr(
          "zero_optimization.cpu_offload offloads parameters that are not sharded in stage 0"));
  EXPECT_EQ(
      errors_of(zero(R"("stage": 3, "cpu_offload": true, "offload_param": {"device": "cpu"})")),
      "");
}

TEST(ZeroSection, UnusedParametersAreCheckedInStagesOneAndTwo) {
  const std::string key = R"("ignore_unused_parameters": false)";
  EXPECT_TRUE(reading_with(zero(R"("stage": 2)")).config.zero.ignore_unused_parameters.value);
  for (const int stage : {0, 1, 2, 3}) {
    const Reading reading = reading_with(zero("\"stage\": " + std::to_string(stage) + ", " + key));
    EXPECT_EQ(lines_of(reading.errors), "");
    EXPECT_FALSE(reading.config.zero.ignore_unused_parameters.value);
    EXPECT_EQ(
        lines_of(reading.notes).find("looks for unused parameters in stages 1 and 2") !=
            std::string::npos,
        stage == 0 || stage == 3);
  }
}

TEST(ZeroSection, LimitsOfStage3HaveTwoNames) {
  const ZeroSection section = reading_with(zero(R"("stage": 3, "stage3_max_live_parameters": 1e6,
    "param_persistence_threshold": 10, "stage3_prefetch_bucket_size": 0)"))
                                  .config.zero;
  EXPECT_EQ(section.plugin.stage3_max_live_parameters, 1'000'000);
  EXPECT_EQ(section.plugin.stage3_param_persistence_threshold, 10);
  EXPECT_EQ(section.prefetch_bucket_size.value, 0);
  EXPECT_FALSE(reading_with("").config.zero.plugin.stage3_max_live_parameters.has_value());
  for (const std::string key :
       {"model_persistence_threshold", "stage3_model_persistence_threshold"}) {
    EXPECT_EQ(
        reading_with(zero("\"" + key + "\": 1e9"))
            .config.zero.plugin.stage3_model_persistence_threshold,
        1'000'000'000);
  }
  EXPECT_THAT(
      errors_of(zero(R"("model_persistence_threshold": -1)")),
      HasSubstr("invalid value for zero_optimization.model_persistence_threshold; got -1"));
  EXPECT_THAT(
      errors_of(zero(R"("max_live_parameters": -1)")),
      HasSubstr("invalid value for zero_optimization.max_live_parameters; got -1"));
  EXPECT_THAT(
      notes_of(zero(R"("max_reuse_distance": 5)")),
      HasSubstr("zero_optimization.max_reuse_distance is ignored: the least recently used"));
}

TEST(ZeroSection, KeysThatAStageLacksAreNoted) {
  const std::string zero_3 = "it is for stage 3, and this is stage ";
  for (const std::string key :
       {"stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_max_live_parameters",
        "stage3_model_persistence_threshold"}) {
    const auto notes = [&](const std::string& stage, const std::string& value) {
      return notes_of(zero(R"("stage": )" + stage + ", \"" + key + "\": " + value));
    };
    EXPECT_THAT(
        notes("2", "1000"), HasSubstr("zero_optimization." + key + " is ignored: " + zero_3 + "2"));
    EXPECT_THAT(notes("3", "1000"), Not(HasSubstr(key)));
    EXPECT_THAT(notes("2", "\"auto\""), Not(HasSubstr(key)));
  }
  const std::string bucket = R"("reduce_bucket_size": 1000)";
  EXPECT_THAT(notes_of(zero(bucket)), HasSubstr("reduce_bucket_size is ignored: it is for stages"));
  EXPECT_THAT(notes_of(zero(R"("stage": 1, )" + bucket)), Not(HasSubstr("reduce_bucket_size")));
  // Masters of 16-bit parameters are divided in stage 0, too.
  EXPECT_THAT(
      notes_of(zero(bucket) + R"(, "bf16": {"enabled": true})"),
      Not(HasSubstr("reduce_bucket_size")));
  const std::string weights = R"("stage": 1, "load_from_fp32_weights": false)";
  EXPECT_THAT(notes_of(zero(weights)), HasSubstr("load_from_fp32_weights is ignored: only fp16"));
  EXPECT_THAT(
      notes_of(zero(weights) + R"(, "bf16": {"enabled": true})"),
      Not(HasSubstr("load_from_fp32_weights")));
}

TEST(ZeroSection, PlusPlusIsForStageThree) {
  EXPECT_EQ(
      lines_of(reading_with(
                   zero(R"("stage": 3, "zero_quantized_weights": true,
        "zero_quantized_gradients": true, "zero_hpz_partition_size": 2)"),
                   4)
                   .errors),
      "");
  EXPECT_THAT(
      errors_of(zero(R"("stage": 2, "zero_quantized_weights": true)")),
      HasSubstr("zero_quantized_weights is a part of ZeRO++, for stage 3; got stage 2"));
  EXPECT_THAT(
      errors_of(zero(R"("stage": 3, "zero_hpz_partition_size": 3)"), 4),
      HasSubstr("does not divide the ranks; got 3, expected a divisor of 4"));
}

}  // namespace
}  // namespace lockstep::ds_config
