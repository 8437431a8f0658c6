// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/stream_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// torchrun's number for each rank.
std::vector<int> numbers(const std::string& text, int ranks) {
  std::vector<int> all;
  for (const Streams& streams : parse_streams(text, ranks, "--tee")) {
    all.push_back((streams.out ? 1 : 0) + (streams.err ? 2 : 0));
  }
  return all;
}

TEST(ParseStreams, TakesOneNumberForAllOrOneForEach) {
  EXPECT_THAT(numbers("", 2), ElementsAre(0, 0));
  EXPECT_THAT(numbers("3", 2), ElementsAre(3, 3));
  EXPECT_THAT(numbers("0:1,2:2", 3), ElementsAre(1, 0, 2));
}

TEST(ParseStreams, RefusesNonsenseNamingFlagAndText) {
  for (const char* text : {"4", "-1", "x", "0:4", "0:", ":1", "0:1,", "2:1", "0:1,0:2", "0 :1"}) {
    EXPECT_THAT(
        [&] { numbers(text, 2); },
        ThrowsMessage<ConfigError>(
            HasSubstr("invalid value '" + std::string(text) + "' for --tee")))
        << text;
  }
}

TEST(ParseShownRanks, AreThoseNamedOrAll) {
  EXPECT_THAT(parse_shown_ranks("", 2, "--f"), ElementsAre(true, true));
  EXPECT_THAT(parse_shown_ranks("2,0", 3, "--f"), ElementsAre(true, false, true));
  for (const char* text : {"3", "a", "0,", "-1"}) {
    EXPECT_THAT(
        [&] { parse_shown_ranks(text, 3, "--f"); },
        ThrowsMessage<ConfigError>(HasSubstr("invalid value '" + std::string(text) + "' for --f")))
        << text;
  }
}

}  // namespace
}  // namespace lockstep::launcher
