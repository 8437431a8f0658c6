// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/rank.h"

#include <thread>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

class Rank : public testing::Test {
 protected:
  ~Rank() override { set_process_rank({}); }
};

TEST_F(Rank, IsUnknownAndMainByDefault) {
  EXPECT_EQ(current_rank().rank, -1);
  EXPECT_TRUE(current_rank().is_main());
  EXPECT_EQ(rank_suffix(), "");
}

TEST_F(Rank, OfTheProcessIsSeenByEveryThread) {
  set_process_rank({1, 4});
  RankLabel seen;
  std::thread([&] { seen = current_rank(); }).join();
  EXPECT_EQ(seen.rank, 1);
  EXPECT_EQ(seen.size, 4);
  EXPECT_FALSE(seen.is_main());
  EXPECT_EQ(rank_suffix(), " (rank 1 of 4)");
}

TEST_F(Rank, OfAThreadAppliesToThatThreadOnly) {
  set_process_rank({1, 4});
  const ThreadRankScope scope({0, 2});
  EXPECT_EQ(current_rank().rank, 0);
  EXPECT_TRUE(current_rank().is_main());
  int other = -1;
  std::thread([&] { other = current_rank().rank; }).join();
  EXPECT_EQ(other, 1);
}

TEST_F(Rank, ScopesNestAndRestore) {
  set_process_rank({1, 4});
  {
    const ThreadRankScope outer({2, 4});
    {
      const ThreadRankScope inner({3, 4});
      EXPECT_EQ(current_rank().rank, 3);
    }
    EXPECT_EQ(current_rank().rank, 2);
  }
  EXPECT_EQ(current_rank().rank, 1);
}

TEST_F(Rank, AWorldOfOneHasNoSuffix) {
  set_process_rank({0, 1});
  EXPECT_EQ(rank_suffix(), "");
}

}  // namespace
}  // namespace lockstep
