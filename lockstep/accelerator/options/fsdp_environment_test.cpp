// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/options/fsdp_environment.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/accelerator/options/option_text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/zero_options/fsdp_table.h"
#include "lockstep/zero_options/zero_rows.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

internal::FsdpEnvironment with_fsdp(std::map<std::string, std::string> variables) {
  variables.emplace("ACCELERATE_USE_FSDP", "true");
  return internal::read_fsdp_environment(Environment::of(std::move(variables)));
}

TEST(FsdpEnvironment, VariablesOfAcceleratesLauncherAreUsed) {
  const internal::FsdpEnvironment found = with_fsdp(
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
  const internal::FsdpEnvironment second = with_fsdp(
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
  const internal::FsdpEnvironment off =
      internal::read_fsdp_environment(Environment::of({{"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}}));
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

/// The variables that an option needs to have an effect.
std::map<std::string, std::string> needed_by(const fsdp::Option& option) {
  const std::map<std::string_view, std::map<std::string, std::string>> needed = {
      {"fsdp_reshard_after_forward", {{"FSDP_VERSION", "2"}}},
      {"fsdp_auto_wrap_policy", {{"FSDP_TRANSFORMER_CLS_TO_WRAP", "A"}}},
      {"fsdp_min_num_params", {{"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"}}},
      {"fsdp_transformer_layer_cls_to_wrap",
       {{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"}}}};
  const auto found = needed.find(option.key);
  return found == needed.end() ? std::map<std::string, std::string>() : found->second;
}

/// Returns the options of ZeRO by name; none for data parallel.
std::map<std::string, std::string> zero_texts(const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::string> texts;
  if (const auto zero = with_fsdp(variables).plugin->zero(2)) {
    visit_zero_options(*zero, [&](const char* name, const auto& value, const auto& /*row*/) {
      texts[name] = internal::option_text(value);
    });
  }
  return texts;
}

TEST(FsdpEnvironment, EachOptionSetsTheRowsOfZeroThatItsTableNames) {
  for (const fsdp::Option& option : fsdp::kOptions) {
    std::vector<std::string> values = {"true", "false", "2", "1000", "A"};
    for (const fsdp::Word& word : option.words) {
      values.emplace_back(word.text);
    }
    const auto without = zero_texts(needed_by(option));
    std::set<std::string> changed;
    for (const std::string& value : values) {
      auto variables = needed_by(option);
      variables[option.variable] = value;
      try {
        for (const auto& [name, text] : zero_texts(variables)) {
          if (text != without.at(name)) {
            changed.insert(name);
          }
        }
      } catch (const ConfigError&) {  // It is no value of this option.
      }
    }
    std::set<std::string> expected;
    if (!option.zero.empty()) {
      for (const std::string& name : split(std::string(option.zero), ' ')) {
        expected.insert(name);
      }
    }
    EXPECT_EQ(changed, expected) << option.key;
  }
}

}  // namespace
}  // namespace lockstep
