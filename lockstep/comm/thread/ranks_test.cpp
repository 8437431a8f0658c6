// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/thread/ranks.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

TEST(Ranks, gives_each_thread_its_rank_and_label) {
  std::atomic<int> seen{0};
  ranks(4, [&](Group group) {
    EXPECT_EQ(group.size(), 4);
    EXPECT_EQ(current_rank().rank, group.rank());
    seen |= 1 << group.rank();
  });
  EXPECT_EQ(seen, 15);
}

TEST(Ranks, throws_the_first_error_and_ends_the_ranks_that_wait_for_it) {
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

TEST(Ranks, reduction_order_is_rank_order) {
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

TEST(Ranks, refuses_an_empty_world) {
  EXPECT_THROW(ranks(0, [](Group) {}), ConfigError);
}

}  // namespace
}  // namespace lockstep
