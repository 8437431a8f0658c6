// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

TEST(Error, PutsThePlaceInBrackets) {
  EXPECT_STREQ(Error("launch", "it failed").what(), "[launch] it failed");
  EXPECT_STREQ(ConfigError("world", "bad").what(), "[world] bad");
}

TEST(Error, NamesTheRankOnlyInAWorldOfSeveral) {
  {
    const ThreadRankScope scope({1, 2});
    EXPECT_STREQ(ConfigError("world", "bad").what(), "[world] bad (rank 1 of 2)");
  }
  const ThreadRankScope scope({0, 1});
  EXPECT_STREQ(ConfigError("world", "bad").what(), "[world] bad");
}

TEST(Error, KeepsTheRankItHadWhenThrown) {
  const Error error = [] {
    const ThreadRankScope scope({3, 4});
    return Error("comm", "lost");
  }();
  EXPECT_THAT(error.what(), EndsWith("(rank 3 of 4)"));
}

TEST(CommError, CarriesOperationPeerAndTime) {
  const CommError error("all_reduce", "timed out", 2, 30.5);
  EXPECT_STREQ(error.what(), "[all_reduce] timed out");
  EXPECT_EQ(error.op(), "all_reduce");
  EXPECT_EQ(error.peer(), 2);
  EXPECT_EQ(error.seconds(), 30.5);
  EXPECT_EQ(CommError("barrier", "failed").peer(), -1);
}

TEST(CheckpointError, NamesPathAndTensor) {
  const CheckpointError file("/ckpt/model.safetensors", "too short");
  EXPECT_STREQ(file.what(), "[/ckpt/model.safetensors] too short");
  EXPECT_EQ(file.path(), "/ckpt/model.safetensors");
  EXPECT_EQ(file.tensor(), "");
  const CheckpointError tensor("/ckpt/model.safetensors", "flipped bit", "fc.weight");
  EXPECT_STREQ(tensor.what(), "[/ckpt/model.safetensors: fc.weight] flipped bit");
  EXPECT_EQ(tensor.tensor(), "fc.weight");
}

TEST(Error, TheThreeKindsAreErrorsButNotOneAnother) {
  EXPECT_THROW(throw ConfigError("a", "b"), Error);
  EXPECT_THROW(throw CommError("a", "b"), Error);
  EXPECT_THROW(throw CheckpointError("a", "b"), std::runtime_error);
  const CommError comm("a", "b");
  const Error& root = comm;
  EXPECT_EQ(dynamic_cast<const ConfigError*>(&root), nullptr);
}

TEST(Assertion, SaysNothingWhileItHolds) {
  int evaluated = 0;
  EXPECT_NO_THROW(LOCKSTEP_ASSERT(++evaluated == 1, "unused"));
  EXPECT_EQ(evaluated, 1);
}

TEST(Assertion, NamesPlaceConditionAndReason) {
  const int buckets = 3;
  EXPECT_THAT(
      [&] { LOCKSTEP_ASSERT(buckets == 2, "every bucket has a twin"); },
      ThrowsMessage<Error>(AllOf(
          StartsWith("["),
          HasSubstr("error_test.cpp:"),
          HasSubstr("buckets == 2 does not hold"),
          HasSubstr("every bucket has a twin"),
          HasSubstr("report"))));
}

}  // namespace
}  // namespace lockstep
