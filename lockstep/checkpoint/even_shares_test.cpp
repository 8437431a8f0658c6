// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/even_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::checkpoint {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(EvenShares, BalanceTheFixedLoads) {
  EvenShares shares(3, 1);
  shares.claim(0, 100);
  EXPECT_THAT(shares.divide(200), ElementsAre(Pair(0, 0), Pair(0, 100), Pair(100, 200)));
  EXPECT_THAT(shares.divide(30), ElementsAre(Pair(0, 10), Pair(10, 20), Pair(20, 30)));
}

TEST(EvenShares, FillTheLeastLoadedFirst) {
  EvenShares shares(3, 1);
  shares.claim(0, 100);
  shares.claim(1, 30);
  EXPECT_THAT(shares.divide(50), ElementsAre(Pair(0, 0), Pair(0, 10), Pair(10, 50)));
}

TEST(EvenShares, DoNotSplitSmallTensors) {
  EvenShares shares(2, 51);
  shares.claim(0, 100);
  EXPECT_THAT(shares.divide(50), ElementsAre(Pair(0, 50), Pair(50, 50)));
}

TEST(EvenShares, CoverEveryByteOnceForAllLoads) {
  for (size_t writers = 1; writers <= 5; ++writers) {
    for (int64_t load = 0; load < 40; load += 7) {
      for (int64_t bytes = 0; bytes < 60; ++bytes) {
        EvenShares shares(writers, 1);
        for (size_t i = 0; i < writers; ++i) {
          shares.claim(i, load * static_cast<int64_t>(i % 3));
        }
        int64_t next = 0;
        for (const auto& [begin, end] : shares.divide(bytes)) {
          EXPECT_EQ(begin, next);
          EXPECT_LE(begin, end);
          next = end;
        }
        EXPECT_EQ(next, bytes);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
