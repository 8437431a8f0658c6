// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero_options/fsdp_table.h"

#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "lockstep/base/text/words.h"

namespace lockstep::fsdp {
namespace {

TEST(FsdpOptionTable, NamesAreUniqueAndOfOneForm) {
  std::set<std::string_view> names;
  for (const Option& option : kOptions) {
    EXPECT_TRUE(names.insert(option.key).second) << option.key;
    EXPECT_TRUE(names.insert(option.variable).second) << option.variable;
    EXPECT_TRUE(std::string_view(option.key).starts_with("fsdp_")) << option.key;
    EXPECT_TRUE(std::string_view(option.variable).starts_with("FSDP_")) << option.variable;
  }
}

TEST(FsdpOptionTable, EveryRowSaysWhatTheOptionDoes) {
  for (const Option& option : kOptions) {
    const bool has_effect = !option.member.empty() || option.sets_stage;
    EXPECT_EQ(option.member.empty(), option.zero.empty()) << option.key;
    EXPECT_EQ(has_effect + option.is_refused() + !option.variable_note.empty(), 1) << option.key;
    EXPECT_EQ(option.is_refused(), !option.instead.empty()) << option.key;
    EXPECT_EQ(option.import_note.empty(), option.silent_value.empty()) << option.key;
    EXPECT_EQ(option.words.empty(), option.type != Type::kWord) << option.key;
    EXPECT_LE(option.numbers, option.words.size()) << option.key;
  }
}

TEST(FsdpOptionTable, SilentValuesAreValues) {
  for (const Option& option : kOptions) {
    const std::string value(option.silent_value);
    if (option.type == Type::kWord && !value.empty()) {
      EXPECT_NE(find_word(option, value), nullptr) << option.key;
    } else if (!value.empty()) {
      EXPECT_TRUE(truth_value(value)) << option.key;
    }
  }
}

TEST(FsdpOptionTable, WordsAreFoundInAnyCaseAndByNumber) {
  EXPECT_EQ(find_word(kShardingStrategy, "hybrid_Shard")->text, "HYBRID_SHARD");
  EXPECT_EQ(find_word(kShardingStrategy, "4")->text, "HYBRID_SHARD");
  EXPECT_EQ(find_word(kShardingStrategy, "6"), nullptr);
  EXPECT_EQ(find_word(kAutoWrapPolicy, "1"), nullptr) << "torch has no numbers for policies";
  EXPECT_EQ(find_word(kBackwardPrefetch, "3"), nullptr) << "nor for NO_PREFETCH";
}

}  // namespace
}  // namespace lockstep::fsdp
