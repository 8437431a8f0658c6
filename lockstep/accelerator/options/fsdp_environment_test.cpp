// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/options/fsdp_environment.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

FsdpEnvironment with_fsdp(std::map<std::string, std::string> variables) {
  variables.emplace("ACCELERATE_USE_FSDP", "true");
  return read_fsdp_environment(Environment::of(std::move(variables)));
}

TEST(FsdpEnvironment, VariablesOfAcceleratesLauncherAreUsed) {
  const FsdpEnvironment found = with_fsdp(
      {{"FSDP_VERSION", "1"},
       {"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"},
       {"FSDP_RESHARD_AFTER_FORWARD", "true"},
       {"FSDP_OFFLOAD_PARAMS", "true"},
       {"FSDP_MIN_NUM_PARAMS", "1000"},
       {"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"},
       {"FSDP_BACKWARD_PREFETCH", "NO_PREFETCH"},
       {"FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT"},
       {"FSDP_USE_ORIG_PARAMS", "true"},
       {"FSDP_ACTIVATION_CHECKPOINTING", "false"}});
  ASSERT_TRUE(found.plugin);
  EXPECT_EQ(found.plugin->sharding_strategy, ShardingStrategy::kShardGradOp);
  EXPECT_FALSE(found.plugin->reshard_after_forward);
  EXPECT_TRUE(found.plugin->cpu_offload);
  EXPECT_EQ(found.plugin->auto_wrap_policy, AutoWrapPolicy::kSize);
  EXPECT_EQ(found.plugin->min_num_params, 1000);
  EXPECT_EQ(found.plugin->backward_prefetch, BackwardPrefetch::kNone);
  EXPECT_EQ(found.plugin->state_dict_type, StateDictType::kFullStateDict);
  EXPECT_THAT(
      found.not_used,
      ElementsAre("FSDP_RESHARD_AFTER_FORWARD: FSDP_VERSION 1 uses FSDP_SHARDING_STRATEGY"));
  const FsdpEnvironment second = with_fsdp(
      {{"FSDP_VERSION", "2"},
       {"FSDP_RESHARD_AFTER_FORWARD", "false"},
       {"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
       {"FSDP_TRANSFORMER_CLS_TO_WRAP", "A,B"}});
  EXPECT_EQ(second.plugin->reshard_after_forward, false);
  EXPECT_THAT(second.plugin->transformer_layer_cls_to_wrap, ElementsAre("A", "B"));
  EXPECT_THAT(second.not_used, IsEmpty());
}

TEST(FsdpEnvironment, UnusedVariablesAreNamed) {
  EXPECT_THAT(
      with_fsdp({{"FSDP_ACTIVATION_CHECKPOINTING", "true"},
                 {"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"},
                 {"FSDP_SYNC_MODULE_STATES", "false"},
                 {"FSDP_MIN_NUM_PARAMS", "5"},
                 {"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
                 {"FSDP_BACKWARD_PREFETCH", "BACKWARD_POST"}})
          .not_used,
      ElementsAre(
          StartsWith("FSDP_MIN_NUM_PARAMS: only SIZE_BASED_WRAP uses it"),
          StartsWith("FSDP_AUTO_WRAP_POLICY: TRANSFORMER_BASED_WRAP needs"),
          StartsWith("FSDP_BACKWARD_PREFETCH: BACKWARD_POST runs as"),
          StartsWith("FSDP_ACTIVATION_CHECKPOINTING: the program calls"),
          StartsWith("FSDP_CPU_RAM_EFFICIENT_LOADING: the program builds"),
          StartsWith("FSDP_SYNC_MODULE_STATES: it is always true")));
  const FsdpEnvironment off =
      read_fsdp_environment(Environment::of({{"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}}));
  EXPECT_FALSE(off.plugin);
  EXPECT_THAT(off.not_used, ElementsAre("FSDP_SHARDING_STRATEGY: ACCELERATE_USE_FSDP is not true"));
}

TEST(FsdpEnvironment, WrongWordsAreErrorsThatNameTheVariable) {
  const std::map<std::string, std::string> cases = {
      {"FSDP_SHARDING_STRATEGY", "FULL_SHRD"},
      {"FSDP_AUTO_WRAP_POLICY", "TRANS_WRAP"},
      {"FSDP_BACKWARD_PREFETCH", "SOON"},
      {"FSDP_STATE_DICT_TYPE", "SHARDY"},
      {"FSDP_OFFLOAD_PARAMS", "maybe"},
      {"FSDP_VERSION", "3"},
      {"FSDP_IGNORED_MODULES", "head"}};
  for (const auto& [name, value] : cases) {
    EXPECT_THAT(
        ([&, &name = name, &value = value] {
          with_fsdp({{name, value}});
        }),
        ThrowsMessage<ConfigError>(AllOf(HasSubstr(name), HasSubstr("'" + value + "'"))));
  }
  EXPECT_THAT(
      [] {
        with_fsdp({{"FSDP_SHARDING_STRATEGY", "FULL_SHRD"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("did you mean 'full_shard'?")));
}

}  // namespace
}  // namespace lockstep
