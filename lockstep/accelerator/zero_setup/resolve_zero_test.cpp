// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/zero_setup/resolve_zero.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"

namespace lockstep::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Environment nothing_set() {
  return Environment::of({});
}

ResolvedZero resolved(
    const AcceleratorOptions& options, const ZeroFacts& facts = {.processes = 4}) {
  return resolve_zero(options, nothing_set(), facts);
}

std::string refusal(const AcceleratorOptions& options, const ZeroFacts& facts = {.processes = 4}) {
  return error_of([&] { resolve_zero(options, nothing_set(), facts); });
}

std::string refusal(const ZeroPlugin& plugin) {
  return refusal(AcceleratorOptions{.zero = plugin});
}

TEST(ResolveZero, IsDataParallelUnlessAskedFor) {
  const ResolvedZero zero = resolved({});
  EXPECT_FALSE(zero.plugin);
  EXPECT_THAT(zero.not_used, IsEmpty());
}

TEST(ResolveZero, TakesTheProgramsOptionsBeforeTheEnvironment) {
  const Environment environment = Environment::of({{"LOCKSTEP_ZERO_STAGE", "1"}});
  EXPECT_EQ(resolve_zero({.zero = ZeroPlugin{.stage = 3}}, environment, {}).plugin->stage, 3);
  EXPECT_EQ(
      resolve_zero({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}}, environment, {})
          .plugin->stage,
      2);
  EXPECT_EQ(resolve_zero({}, environment, {}).plugin->stage, 1);
}

TEST(ResolveZero, TakesTheLaunchersStageBeforeFsdpsVariables) {
  std::map<std::string, std::string> variables = {
      {"ACCELERATE_USE_FSDP", "true"}, {"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"}};
  EXPECT_EQ(resolve_zero({}, Environment::of(variables), {}).plugin->stage, 2);
  variables["LOCKSTEP_ZERO_STAGE"] = "0";
  EXPECT_FALSE(resolve_zero({}, Environment::of(variables), {}).plugin);
  variables["LOCKSTEP_ZERO_STAGE"] = "3";
  EXPECT_EQ(resolve_zero({}, Environment::of(variables), {}).plugin->stage, 3);
}

TEST(ResolveZero, NamesVariablesThatItDoesNotUse) {
  const Environment environment = Environment::of({{"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}});
  EXPECT_THAT(
      resolve_zero({}, environment, {}).not_used,
      ElementsAre("FSDP_SHARDING_STRATEGY: ACCELERATE_USE_FSDP is not true"));
}

TEST(ResolveZero, NeedsTheHostSizeForFsdpsOptionsOnly) {
  EXPECT_FALSE(needs_host_size({}, nothing_set()));
  EXPECT_FALSE(needs_host_size({.zero = ZeroPlugin()}, nothing_set()));
  EXPECT_TRUE(needs_host_size({.fsdp_plugin = FsdpPlugin()}, nothing_set()));
  EXPECT_TRUE(needs_host_size({}, Environment::of({{"ACCELERATE_USE_FSDP", "true"}})));
  const AcceleratorOptions hybrid{
      .fsdp_plugin = FsdpPlugin{.sharding_strategy = ShardingStrategy::kHybridShard}};
  EXPECT_EQ(resolved(hybrid, {.processes = 4, .host_size = 2}).plugin->zero_hpz_partition_size, 2);
  EXPECT_THAT(
      refusal(hybrid, {.processes = 4, .host_size = 0}),
      HasSubstr("the same number of processes on each host"));
}

TEST(ResolveZero, RefusesTwoSetsOfOptions) {
  const AcceleratorOptions both{.zero = ZeroPlugin(), .fsdp_plugin = FsdpPlugin()};
  EXPECT_THAT(refusal(both), HasSubstr("give only one"));
  EXPECT_THROW(needs_host_size(both, nothing_set()), ConfigError);
}

TEST(ResolveZero, RefusesNumbersOutOfRange) {
  EXPECT_THAT(refusal(ZeroPlugin{.stage = 0}), HasSubstr("got 0, expected 1, 2 or 3"));
  EXPECT_THAT(refusal(ZeroPlugin{.stage = 4}), HasSubstr("got 4, expected 1, 2 or 3"));
  EXPECT_THAT(
      refusal(ZeroPlugin{.stage = 3, .stage3_param_persistence_threshold = -1}),
      HasSubstr("stage3_param_persistence_threshold=-1"));
  EXPECT_THAT(
      refusal(ZeroPlugin{.state_dict_type = StateDictType::kLocalStateDict}),
      HasSubstr("LOCAL_STATE_DICT"));
}

TEST(ResolveZero, RefusesOptionsOfStage3InOtherStages) {
  EXPECT_THAT(
      refusal(ZeroPlugin{.stage = 2, .zero_quantized_weights = true}),
      HasSubstr("got stage 2, expected 3"));
  EXPECT_THAT(
      refusal(ZeroPlugin{.stage = 1, .stage3_unit_classes = {"Linear"}}),
      HasSubstr("got stage 1, expected 3"));
  EXPECT_THAT(
      refusal(ZeroPlugin{.stage = 2, .offload_param = {.device = OffloadDevice::kCpu}}),
      HasSubstr("got stage 2, expected 3"));
}

TEST(ResolveZero, ComparesThePartitionWithTheNumberOfProcesses) {
  const ZeroPlugin plugin{.stage = 3, .zero_hpz_partition_size = 3};
  EXPECT_THAT(refusal({.zero = plugin}, {.processes = 4}), HasSubstr("expected a divisor of 4"));
  EXPECT_EQ(refusal({.zero = plugin}, {.processes = 6}), "no error");
  EXPECT_EQ(refusal({.zero = plugin}, {.processes = 1}), "no error") << "it has no effect there";
}

TEST(ResolveZero, RefusesContradictionsOfOffloading) {
  ZeroPlugin plugin{.stage = 3};
  plugin.offload_param.device = OffloadDevice::kNvme;
  EXPECT_THAT(refusal(plugin), HasSubstr("got no offload_param.nvme_path"));
  plugin.offload_param.nvme_path = "/scratch";
  EXPECT_EQ(refusal(plugin), "no error");
  plugin.offload_optimizer.super_offload = true;
  EXPECT_THAT(refusal(plugin), HasSubstr("got offload_param.device nvme"));
  plugin.offload_optimizer = {.nvme_path = "/scratch"};
  EXPECT_THAT(refusal(plugin), HasSubstr("offload_optimizer.nvme_path is for the device nvme"));
  plugin.offload_optimizer = {.device = OffloadDevice::kCpu, .ratio = 0.5};
  EXPECT_THAT(refusal(plugin), HasSubstr("offload_param; got ratio=0.5"));
  plugin.offload_optimizer = {.device = OffloadDevice::kCpu};
  plugin.zero_quantized_nontrainable_weights = true;
  EXPECT_THAT(refusal(plugin), HasSubstr("zero_quantized_nontrainable_weights"));
}

TEST(ResolveZero, RefusesOtherWaysOfSharingAndSending) {
  EXPECT_THAT(
      refusal({.zero = ZeroPlugin(), .shared_parameters = true}),
      HasSubstr("cannot be combined with shared_parameters"));
  AcceleratorOptions compressed{.zero = ZeroPlugin()};
  compressed.data_parallel.comm_hook.type = CommHookType::kFp16;
  EXPECT_THAT(refusal(compressed), HasSubstr("cannot be combined with the comm hook"));
}

}  // namespace
}  // namespace lockstep::internal
