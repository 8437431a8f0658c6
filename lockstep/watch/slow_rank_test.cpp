// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/slow_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/watch/test_views.h"

namespace lockstep::watch {
namespace {

constexpr int64_t kThousandth = 10'000;

/// Returns views of three ranks with an operation every `step_ns`. Rank 1 is `late` thousandths of
/// a step after the others, for the operations that `is_late` selects.
template <typename IsLate>
std::vector<RankView> job(
    uint64_t operations, int64_t late, IsLate is_late, int64_t step_ns = 1000 * kThousandth) {
  std::vector<RankView> views = {view_of(0, {}), view_of(1, {}), view_of(2, {})};
  for (uint64_t number = 1; number <= operations; ++number) {
    const auto at = static_cast<int64_t>(number) * step_ns;
    for (RankView& view : views) {
      const bool is_late_now = view.rank == 1 && is_late(number);
      view.record.operations.push_back(all_reduce(
          number,
          at + (is_late_now ? late * step_ns / 1000 : view.rank * step_ns / 1000),
          Stage::kDone));
    }
  }
  return views;
}

TEST(SlowRank, IsTheOneTheOthersWaitFor) {
  const auto slow = find_slow_rank(job(50, 500, [](auto) { return true; }));
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 1);
  EXPECT_THAT(
      slow->what,
      testing::AllOf(
          testing::HasSubstr("rank 1 is slow: it was last in 50 of the last 50"),
          testing::HasSubstr("the other ranks waited for it for 50 %")));
}

/// Starts several operations and then waits for all, like the buckets of a backward.
TEST(SlowRank, WaitingForSeveralOperationsAtOnceCountsOnce) {
  constexpr int64_t kStepNs = 100'000'000;
  std::vector<RankView> views = {view_of(0, {}), view_of(1, {})};
  for (uint64_t number = 1; number <= 60; ++number) {
    const int64_t bucket = static_cast<int64_t>(number - 1) % 3;
    const int64_t step_ns = static_cast<int64_t>((number - 1) / 3 + 1) * kStepNs;
    for (RankView& view : views) {
      const int64_t late_ns = view.rank == 1 ? kStepNs / 2 : 0;
      view.record.operations.push_back(
          all_reduce(number, step_ns + bucket + late_ns, Stage::kDone));
    }
  }
  const auto slow = find_slow_rank(views);
  ASSERT_TRUE(slow);
  EXPECT_THAT(slow->what, testing::HasSubstr("waited for it for 51 % of 2.0 s"));
}

TEST(SlowRank, IsNoRankThatIsLateByLittleOrSeldom) {
  EXPECT_FALSE(find_slow_rank(job(50, 100, [](auto) { return true; })));
  EXPECT_FALSE(find_slow_rank(job(50, 900, [](auto number) { return number % 2 == 0; })));
}

TEST(SlowRank, IsNoRankIfWaitingTakesLittleTime) {
  EXPECT_FALSE(find_slow_rank(job(
      50, 500, [](auto) { return true; }, 1000)));
}

TEST(SlowRank, NeedsManyOperations) {
  EXPECT_FALSE(find_slow_rank(job(19, 500, [](auto) { return true; })));
}

TEST(SlowRank, IsFoundFromOperationsThatAllRanksReached) {
  std::vector<RankView> views = job(50, 500, [](auto) { return true; });
  auto& forgotten = views[2].record.operations;
  forgotten.erase(forgotten.begin(), forgotten.end() - 10);
  EXPECT_FALSE(find_slow_rank(views));
}

TEST(SlowRank, OfAnotherHostSpendsTheLeastTimeInOperations) {
  std::vector<RankView> views = {view_of(0, {}), view_of(1, {}), view_of(2, {})};
  views[2].host = "node7";
  const auto spend = [&views](double first, double second, double third) {
    views[0].in_operations = first;
    views[1].in_operations = second;
    views[2].in_operations = third;
    return find_slow_rank(views);
  };
  EXPECT_FALSE(spend(0.3, 0.4, 0.25));
  EXPECT_FALSE(spend(0.8, 0.3, 0.25));  // Two of them are slow.
  const auto slow = spend(0.8, 0.7, 0.25);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 2);
  EXPECT_THAT(
      slow->what,
      testing::HasSubstr(
          "rank 2 on node7 is slow: the other ranks spend at least 70 % of their time"));
  views[0].in_operations.reset();
  EXPECT_FALSE(find_slow_rank(views));
}

TEST(SlowRank, ATimeShareCountsConcurrentOperationsOnce) {
  FlightRecord record;
  for (uint64_t number = 1; number <= 20; ++number) {
    EXPECT_FALSE(share_in_operations(record));
    const auto at = static_cast<int64_t>((number + 1) / 2) * 1000;  // Two at a time, every 1000.
    record.operations.push_back(all_reduce(number, at, Stage::kDone));
    record.operations.back().ended_ns = at + 500;
  }
  EXPECT_NEAR(share_in_operations(record).value(), 10 * 500.0 / (9 * 1000.0 + 500), 1e-9);
}

}  // namespace
}  // namespace lockstep::watch
