// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/prefetcher.h"

#include <atomic>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/rank.h"

namespace lockstep::data {
namespace {

/// Move-only, as a batch may be.
using Value = std::unique_ptr<int64_t>;

Value square(int64_t index) {
  return std::make_unique<int64_t>(index * index);
}

TEST(Prefetcher, HandsOutInOrderForAnyNumberOfWorkers) {
  for (const int workers : {0, 1, 2, 5}) {
    for (const int64_t ahead : {0, 1, 3}) {
      Prefetcher<Value> prefetcher(workers, ahead, 3, 200, square);
      for (int64_t index = 3; index < 200; ++index) {
        ASSERT_FALSE(prefetcher.done());
        ASSERT_EQ(*prefetcher.next(), index * index);
      }
      EXPECT_TRUE(prefetcher.done());
    }
  }
}

TEST(Prefetcher, WithoutWorkersComputesInTheCallingThread) {
  Prefetcher<std::thread::id> prefetcher(
      0, 2, 0, 1, [](int64_t) { return std::this_thread::get_id(); });
  EXPECT_EQ(prefetcher.next(), std::this_thread::get_id());
}

TEST(Prefetcher, NeverHasMoreThanWorkersPlusAheadInFlight) {
  constexpr int kWorkers = 3;
  constexpr int64_t kAhead = 2;
  std::atomic<int64_t> handed_out = 0;
  std::atomic<int64_t> most = 0;
  {
    Prefetcher<int64_t> prefetcher(kWorkers, kAhead, 0, 500, [&](int64_t index) {
      const int64_t in_flight = index + 1 - handed_out;
      int64_t seen = most;
      while (seen < in_flight && !most.compare_exchange_weak(seen, in_flight)) {
      }
      return index;
    });
    while (!prefetcher.done()) {
      prefetcher.next();
      ++handed_out;
    }
  }
  // A worker may see the count before the consumer raises it for the batch it has just taken.
  EXPECT_LE(most, kWorkers + kAhead + 1);
  EXPECT_GE(most, 1);
}

TEST(Prefetcher, RethrowsAtExactlyThatIndexAndAgain) {
  for (const int workers : {0, 1, 4}) {
    std::atomic<int> computed_seven{0};
    Prefetcher<int64_t> prefetcher(workers, 4, 0, 100, [&](int64_t index) {
      if (index == 7) {
        ++computed_seven;
        throw std::out_of_range("seven");
      }
      return index;
    });
    for (int64_t index = 0; index < 7; ++index) {
      ASSERT_EQ(prefetcher.next(), index);
    }
    EXPECT_THROW(prefetcher.next(), std::out_of_range);
    EXPECT_THROW(prefetcher.next(), std::out_of_range);
    EXPECT_EQ(computed_seven, 1);
  }
}

TEST(Prefetcher, StopsWithoutComputingTheRest) {
  std::atomic<int64_t> computed = 0;
  {
    Prefetcher<int64_t> prefetcher(2, 2, 0, 1'000'000'000, [&](int64_t index) {
      ++computed;
      return index;
    });
    prefetcher.next();
  }
  EXPECT_LE(computed, 6);
}

TEST(Prefetcher, RunsWithGradientsOffAndUnderTheConsumersRank) {
  const ThreadRankScope scope({.rank = 2, .size = 3});
  for (const int workers : {0, 1}) {
    Prefetcher<int> prefetcher(workers, 0, 0, 1, [](int64_t) {
      return c10::GradMode::is_enabled() ? -1 : current_rank().rank;
    });
    EXPECT_EQ(prefetcher.next(), 2);
    EXPECT_TRUE(c10::GradMode::is_enabled());
  }
}

TEST(Prefetcher, OfNothingIsDone) {
  const Prefetcher<Value> prefetcher(2, 2, 5, 5, square);
  EXPECT_TRUE(prefetcher.done());
}

}  // namespace
}  // namespace lockstep::data
