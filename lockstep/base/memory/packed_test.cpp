// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/packed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Packed, RestoresNumbersStructsStringsAndVectors) {
  struct Score {
    int64_t step = 0;
    double loss = 0;
  };
  EXPECT_EQ(unpack<double>(pack(0.1)), 0.1);
  EXPECT_EQ(unpack<bool>(pack(true)), true);
  EXPECT_EQ(unpack<std::string>(pack(std::string("a\0b", 3))), std::string("a\0b", 3));
  const auto score = unpack<Score>(pack(Score{.step = 3, .loss = 0.5}));
  EXPECT_EQ(score.step, 3);
  EXPECT_EQ(score.loss, 0.5);
  const std::vector<std::vector<std::string>> nested = {{"x", ""}, {}, {"yz"}};
  EXPECT_THAT(
      unpack<std::vector<std::vector<std::string>>>(pack(nested)),
      ElementsAre(ElementsAre("x", ""), ElementsAre(), ElementsAre("yz")));
}

TEST(Packed, KeepsVectorsOfBool) {
  EXPECT_THAT(
      unpack<std::vector<bool>>(pack(std::vector<bool>{true, false})), ElementsAre(true, false));
}

TEST(Packed, RefusesTooFewAndTooManyBytes) {
  const std::string bytes = pack(std::string("abc"));
  EXPECT_THAT(
      [&] { unpack<std::string>(bytes.substr(0, bytes.size() - 1)); },
      ThrowsMessage<Error>(HasSubstr("ends too early")));
  EXPECT_THAT(
      [&] { unpack<std::string>(bytes + "d"); },
      ThrowsMessage<Error>(HasSubstr("more than one value")));
}

}  // namespace
}  // namespace lockstep
