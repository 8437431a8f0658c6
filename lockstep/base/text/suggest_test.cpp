// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/suggest.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

const std::vector<std::string> kNames = {"tensorboard", "jsonl", "epochs"};

TEST(DidYouMean, NamesTheClosestKnownName) {
  EXPECT_EQ(did_you_mean("json", kNames), "; did you mean 'jsonl'?");
  EXPECT_EQ(did_you_mean("tensorbaord", kNames), "; did you mean 'tensorboard'?");
  EXPECT_EQ(did_you_mean("TensorBoard", kNames), "; did you mean 'tensorboard'?");
  EXPECT_EQ(did_you_mean("epoch", kNames), "; did you mean 'epochs'?");
}

TEST(DidYouMean, CountsASwapOfNeighboursAsOneEdit) {
  EXPECT_EQ(did_you_mean("ba", {"ab"}), "; did you mean 'ab'?");
}

TEST(DidYouMean, SaysNothingWhenNoNameIsClose) {
  EXPECT_EQ(did_you_mean("wandb", kNames), "");
  EXPECT_EQ(did_you_mean("7", {"0", "1"}), "");
  EXPECT_EQ(did_you_mean("", kNames), "");
  EXPECT_EQ(did_you_mean("json", {}), "");
  EXPECT_EQ(did_you_mean(std::string(100000, 'x'), kNames), "");
}

}  // namespace
}  // namespace lockstep
