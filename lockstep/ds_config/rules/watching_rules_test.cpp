// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DsConfig config_of(const std::string& keys) {
  return reading_of("{\"train_batch_size\": 8,\n" + keys + "}", 1).config;
}

TEST(CommsLogger, IsReadWithTorchsNamesOfOperationsToo) {
  const DsConfig config = config_of(
      R"("comms_logger": {"enabled": true, "verbose": true, "prof_all": false,
          "prof_ops": ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "isend"]})");
  EXPECT_TRUE(config.comms_logger.enabled.value);
  EXPECT_TRUE(config.comms_logger.verbose.value);
  EXPECT_FALSE(config.comms_logger.prof_all.value);
  EXPECT_THAT(
      config.comms_logger.prof_ops.value,
      ElementsAre("all_reduce", "all_gather", "reduce_scatter", "send"));
  EXPECT_THAT(
      config_of(R"("comms_logger": {"prof_ops": "barrier"})").comms_logger.prof_ops.value,
      ElementsAre("barrier"));
}

TEST(CommsLogger, AnUnknownOperationNameIsAnError) {
  EXPECT_THAT(
      errors_of(R"("comms_logger": {"enabled": false, "prof_ops": ["all_redcue"]})"),
      HasSubstr(
          "comms_logger.prof_ops has an unknown operation; got \"all_redcue\", expected one of "
          "all_reduce"));
}

TEST(CommsLogger, AnEmptySelectionIsAnErrorAndAKeyWithoutEffectANote) {
  EXPECT_THAT(
      errors_of(R"("comms_logger": {"enabled": true, "prof_all": false})"),
      HasSubstr("comms_logger logs nothing: prof_all is false and prof_ops is empty"));
  EXPECT_THAT(
      notes_of(R"("comms_logger": {"enabled": true, "prof_ops": ["barrier"]})"),
      HasSubstr("prof_ops is ignored with prof_all"));
}

TEST(Monitors, WriteIntoSeparateFolders) {
  for (const std::string section : {"tensorboard", "csv_monitor"}) {
    const auto named = [&](const std::string& name, bool enabled) {
      return "\"" + section + R"(": {"enabled": )" + (enabled ? "true" : "false") +
             R"(, "job_name": ")" + name + "\"}";
    };
    for (const std::string name : {"../x", "a/../../x", "/x", ""}) {
      EXPECT_THAT(
          errors_of(named(name, true)),
          HasSubstr(section + ".job_name must name a folder in output_path; got \"" + name + "\""));
      EXPECT_EQ(errors_of(named(name, false)), "");
    }
    EXPECT_EQ(errors_of(named("mnist/lr=0.1..2", true)), "");
  }
}

TEST(Wandb, IsReadWithDeepSpeedsDefaults) {
  const DsConfig named = config_of(
      R"("wandb": {"enabled": true, "group": "sweep", "team": "vision", "project": "mnist"})");
  EXPECT_TRUE(named.wandb.enabled.value);
  EXPECT_EQ(named.wandb.group.value, "sweep");
  EXPECT_EQ(named.wandb.team.value, "vision");
  EXPECT_EQ(named.wandb.project.value, "mnist");
  const DsConfig defaults = config_of(R"("wandb": {"enabled": true, "group": null})");
  EXPECT_EQ(defaults.wandb.group.value, std::nullopt);
  EXPECT_EQ(defaults.wandb.team.value, std::nullopt);
  EXPECT_EQ(defaults.wandb.project.value, "deepspeed");
}

TEST(FlopsProfiler, IsRead) {
  const DsConfig config = config_of(
      R"("flops_profiler": {"enabled": true, "profile_step": 3, "top_modules": 5,
          "module_depth": 2, "detailed": false, "recompute_fwd_factor": 0.5, "output_file": "flops.txt"})");
  EXPECT_TRUE(config.flops_profiler.enabled.value);
  EXPECT_EQ(config.flops_profiler.profile_step.value, 3);
  EXPECT_EQ(config.flops_profiler.top_modules.value, 5);
  EXPECT_EQ(config.flops_profiler.module_depth.value, 2);
  EXPECT_EQ(config_of(R"("dump_state": false)").flops_profiler.module_depth.value, -1);
  EXPECT_FALSE(config.flops_profiler.detailed.value);
  EXPECT_EQ(config.flops_profiler.recompute_fwd_factor.value, 0.5);
  EXPECT_EQ(config.flops_profiler.output_file.value, "flops.txt");
  EXPECT_THAT(
      errors_of(R"("flops_profiler": {"enabled": true, "module_depth": -2})"),
      HasSubstr("invalid value for flops_profiler.module_depth;"));
  EXPECT_THAT(
      errors_of(R"("flops_profiler": {"enabled": true, "profile_step": 0})"),
      HasSubstr("invalid value for flops_profiler.profile_step;"));
}

}  // namespace
}  // namespace lockstep::ds_config
