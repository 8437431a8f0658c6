// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/words.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Lower, ChangesLettersOnly) {
  EXPECT_EQ(lower("Node-7.EXAMPLE"), "node-7.example");
  EXPECT_EQ(lower(""), "");
}

TEST(TruthValue, TakesTheUsualWords) {
  for (const char* text : {"true", "Yes", "ON", "1"}) {
    EXPECT_EQ(truth_value(text), true) << text;
  }
  for (const char* text : {"false", "No", "OFF", "0"}) {
    EXPECT_EQ(truth_value(text), false) << text;
  }
  for (const char* text : {"", "y", "2", "none", " true"}) {
    EXPECT_EQ(truth_value(text), std::nullopt) << text;
  }
}

TEST(IsUtf8, KnowsCompleteCharacters) {
  for (const char* text : {"", "plain", "caf\xc3\xa9", "\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(is_utf8(text)) << text;
  }
  for (const char* text : {"\xff", "\xc3", "\xed\xa0\x80"}) {
    EXPECT_FALSE(is_utf8(text)) << text;
  }
}

TEST(Counted, KnowsOneFromMany) {
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(2, "file"), "2 files");
}

TEST(RanksText, NamesOneOrSeveralRanks) {
  EXPECT_EQ(ranks_text({1}), "rank 1");
  EXPECT_EQ(ranks_text({1, 3}), "ranks 1, 3");
}

}  // namespace
}  // namespace lockstep
