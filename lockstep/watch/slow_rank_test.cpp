// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/slow_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/watch/test_views.h"

namespace lockstep::watch {
namespace {

constexpr int64_t kStepNs = 1000;

/// Operations a step apart; rank 1 comes `late_ns` after the others, to those that `is_late` says.
template <typename IsLate>
std::vector<RankView> job(uint64_t operations, int64_t late_ns, IsLate is_late) {
  std::vector<RankView> views = {view_of(0, {}), view_of(1, {}), view_of(2, {})};
  for (uint64_t number = 1; number <= operations; ++number) {
    const auto at = static_cast<int64_t>(number) * kStepNs;
    for (RankView& view : views) {
      const bool late = view.rank == 1 && is_late(number);
      view.record.operations.push_back(
          all_reduce(number, at + (late ? late_ns : view.rank), Stage::kDone));
    }
  }
  return views;
}

TEST(SlowRank, IsTheOneTheOthersWaitFor) {
  const auto slow = find_slow_rank(job(50, 500, [](auto) { return true; }));
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 1);
  EXPECT_NEAR(slow->waiting, 0.5, 0.02);
  EXPECT_THAT(slow->what, testing::HasSubstr("rank 1 is slow: it came last to 50 of the last 50"));
}

TEST(SlowRank, IsNobodyWhoIsLateByLittleOrSeldom) {
  EXPECT_FALSE(find_slow_rank(job(50, 100, [](auto) { return true; })));
  EXPECT_FALSE(find_slow_rank(job(50, 900, [](auto number) { return number % 2 == 0; })));
}

TEST(SlowRank, IsNotJudgedByAFewOperations) {
  EXPECT_FALSE(find_slow_rank(job(19, 500, [](auto) { return true; })));
}

TEST(SlowRank, IsJudgedByOperationsThatAllHaveComeTo) {
  std::vector<RankView> views = job(50, 500, [](auto) { return true; });
  auto& forgotten = views[2].record.operations;
  forgotten.erase(forgotten.begin(), forgotten.end() - 10);
  EXPECT_FALSE(find_slow_rank(views));
}

}  // namespace
}  // namespace lockstep::watch
