// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/thread/ranks.h"

#include <atomic>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

TEST(Ranks, GivesEachThreadItsRankAndLabel) {
  std::atomic<int> seen{0};
  ranks(4, [&](Group group) {
    EXPECT_EQ(group.size(), 4);
    EXPECT_EQ(current_rank().rank, group.rank());
    seen |= 1 << group.rank();
  });
  EXPECT_EQ(seen, 15);
}

TEST(Ranks, ThrowsTheFirstErrorAndEndsTheRanksThatWaitForIt) {
  std::atomic<int> ended{0};
  try {
    ranks(3, [&](Group group) {
      if (group.rank() == 2) {
        throw ConfigError("test", "rank two is unwell");
      }
      Group part = group.rank() < 2 ? group : Group();
      try {
        group.barrier();
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank two is unwell"));
        ++ended;
      }
    });
    FAIL() << "expected the error of rank 2";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("(rank 2 of 3)"));
  }
  EXPECT_EQ(ended, 2);
}

TEST(Ranks, ReductionOrderIsRankOrder) {
  // 1e8 swallows the ones one by one; only in rank order is the sum 1e8 + 0.
  ranks(3, [](Group group) {
    const float values[] = {1e8F, 1.0F, 1.0F};
    const at::Tensor sum = group.all_reduce(at::full({1}, values[group.rank()], at::kFloat)).wait();
    EXPECT_EQ(sum.item<float>(), 1e8F);
    const float reverse[] = {1.0F, 1.0F, 1e8F};
    const at::Tensor other =
        group.all_reduce(at::full({1}, reverse[group.rank()] * 4, at::kFloat)).wait();
    EXPECT_EQ(other.item<float>(), 8.0F + 4e8F);
  });
}

/// Makes rank 0 arrive last if `rank_0_is_last`, else rank 1.
template <typename Start>
void in_turn(const Group& group, std::atomic<int>& started, bool rank_0_is_last, Start start) {
  while ((group.rank() == 0) == rank_0_is_last && started == 0) {
    std::this_thread::yield();
  }
  start();
  ++started;
}

TEST(Ranks, TheLastRanksModesDoNotChangeResults) {
  for (const bool last : {false, true}) {
    std::atomic<int> started{0};
    ranks(2, [&](Group group) {
      std::optional<c10::InferenceMode> inference;
      if (group.rank() == 0) {
        inference.emplace(true);
        at::autocast::set_autocast_enabled(at::kCPU, true);
      }
      std::optional<Pending> sum;
      in_turn(group, started, last, [&] { sum.emplace(group.all_reduce(at::ones({4}))); });
      const at::Tensor result = sum->wait();
      EXPECT_TRUE(at::equal(result, at::full({4}, 2)));
      EXPECT_EQ(result.is_inference(), group.rank() == 0);
      const at::Tensor all = group.all_gather(at::ones({1})).wait();
      EXPECT_EQ(all.is_inference(), group.rank() == 0);
      at::autocast::set_autocast_enabled(at::kCPU, false);
    });
  }
}

TEST(Ranks, AResultMayBeWaitedForInAnotherModeThanItWasAskedFor) {
  ranks(2, [](Group group) {
    if (group.rank() == 0) {
      group.send(at::ones({4}), 1).wait();
      return;
    }
    std::optional<Pending> received;
    {
      const c10::InferenceMode inference;
      received.emplace(group.recv(at::zeros({4}), 0));
    }
    EXPECT_TRUE(at::equal(received->wait(), at::ones({4})));
  });
}

TEST(Ranks, AFailureOfOneRankIsReportedToAllAtOnce) {
  std::atomic<int> errors{0};
  ranks(3, [&](Group group) {
    const at::Tensor mine = at::ones({4});
    if (group.rank() == 1) {
      mine.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
          "no memory here");
    }
    try {
      group.all_gather(mine).wait();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("all_gather failed"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("no memory here"));
      ++errors;
    }
    EXPECT_THROW(group.barrier(), CommError) << "the group failed earlier";
  });
  EXPECT_EQ(errors, 3);
}

TEST(Ranks, RefusesAnEmptyWorld) {
  EXPECT_THROW(ranks(0, [](Group) {}), ConfigError);
}

}  // namespace
}  // namespace lockstep
