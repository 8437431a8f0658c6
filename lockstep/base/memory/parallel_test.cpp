// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/parallel.h"

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

TEST(ForEachIndex, VisitsEachNumberOnceOnAnyNumberOfThreads) {
  for (int threads : {0, 1, 2, 7}) {
    std::vector<std::atomic<int>> visits(20);
    for_each_index(visits.size(), threads, [&](size_t i) { ++visits[i]; });
    for (const auto& count : visits) {
      EXPECT_EQ(count, 1);
    }
  }
}

TEST(ForEachIndex, RethrowsABodysExceptionAndStartsNoMore) {
  std::atomic<int> begun = 0;
  const auto five_throws = [&](size_t i) {
    ++begun;
    if (i == 5) {
      throw std::runtime_error("five");
    }
  };
  EXPECT_THROW(for_each_index(1000, 3, five_throws), std::runtime_error);
  begun = 0;
  EXPECT_THROW(for_each_index(1000, 1, five_throws), std::runtime_error);
  EXPECT_EQ(begun, 6);
}

TEST(ForEachIndex, SpeaksAsTheCallersRankOnEveryThread) {
  const ThreadRankScope scope({.rank = 3, .size = 4});
  for_each_index(50, 4, [](size_t) { EXPECT_EQ(current_rank().rank, 3); });
}

}  // namespace
}  // namespace lockstep
