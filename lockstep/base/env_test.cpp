// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/env.h"

#include <cstdlib>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Environment, AVariableSetToNothingCountsAsNotSet) {
  const Environment environment = Environment::of({{"EMPTY", ""}, {"TEXT", " a b "}});
  EXPECT_EQ(environment.text("EMPTY"), std::nullopt);
  EXPECT_EQ(environment.integer("EMPTY", 0, 1), std::nullopt);
  EXPECT_EQ(environment.boolean("EMPTY"), std::nullopt);
  EXPECT_EQ(environment.text("ABSENT"), std::nullopt);
  EXPECT_EQ(environment.integer("ABSENT", 0, 1), std::nullopt);
  EXPECT_EQ(environment.boolean("ABSENT"), std::nullopt);
  EXPECT_EQ(environment.text("TEXT"), " a b ");
}

TEST(Environment, TakesIntegersWithinTheirRange) {
  const Environment environment = Environment::of({{"N", "7"}, {"M", "-3"}});
  EXPECT_EQ(environment.integer("N", 7, 7), 7);
  EXPECT_EQ(environment.integer("M", -3, 0), -3);
}

TEST(Environment, RefusesNonsenseAndNamesVariableValueAndRange) {
  for (const char* value :
       {"abc",
        "1x",
        " 1",
        "1 ",
        "+1",
        "0x10",
        "1.0",
        "1e3",
        "",
        "11",
        "-1",
        "99999999999999999999"}) {
    const Environment environment = Environment::of({{"LIMIT", value}});
    if (std::string(value).empty()) {
      continue;
    }
    EXPECT_THAT(
        [&] { environment.integer("LIMIT", 0, 10); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("[environment]"),
            HasSubstr("LIMIT"),
            HasSubstr("'" + std::string(value) + "'"),
            HasSubstr("0 to 10"))));
  }
}

TEST(Environment, TakesTheUsualWordsForYesAndNoInAnyCase) {
  for (const char* value : {"1", "true", "True", "YES", "on"}) {
    EXPECT_EQ(Environment::of({{"FLAG", value}}).boolean("FLAG"), true) << value;
  }
  for (const char* value : {"0", "false", "FALSE", "no", "Off"}) {
    EXPECT_EQ(Environment::of({{"FLAG", value}}).boolean("FLAG"), false) << value;
  }
  for (const char* value : {"2", "y", "enabled", " 1"}) {
    EXPECT_THAT(
        [&] {
          Environment::of({{"FLAG", value}}).boolean("FLAG");
        },
        ThrowsMessage<ConfigError>(AllOf(HasSubstr("FLAG"), HasSubstr(value))));
  }
}

TEST(Environment, ReadsTheProcess) {
  ASSERT_EQ(::setenv("LOCKSTEP_ENV_TEST", "41", 1), 0);
  EXPECT_EQ(Environment::process().integer("LOCKSTEP_ENV_TEST", 0, 100), 41);
  ASSERT_EQ(::unsetenv("LOCKSTEP_ENV_TEST"), 0);
  EXPECT_EQ(Environment::process().text("LOCKSTEP_ENV_TEST"), std::nullopt);
}

TEST(ParseInteger, AcceptsOnlyDecimalIntegers) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("007"), 7);
  EXPECT_EQ(parse_integer("-12"), -12);
  EXPECT_EQ(parse_integer("9223372036854775807"), std::numeric_limits<int64_t>::max());
  for (const char* text : {"", "-", "+1", " 1", "1 ", "1.5", "0x1", "9223372036854775808"}) {
    EXPECT_EQ(parse_integer(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_integer(std::string("1\0", 2)), std::nullopt);
}

}  // namespace
}  // namespace lockstep
