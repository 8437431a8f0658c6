// SPDX-License-Identifier: Apache-2.0
// A rank is killed within a collective, at any moment. The job ends in seconds and names it.
#include <chrono>
#include <csignal>
#include <random>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/harness/lockstep_run.h"
#include "tests/faults/fault_bench.h"

namespace lockstep::faults {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRounds = 6;
constexpr int kAllRounds = 50;
constexpr auto kLimit = std::chrono::seconds(5);
constexpr int kLongestMs = 150;  // Two to three all-reduces of 64 MiB here.

TEST(KillInACollective, EndsTheJobInSecondsWithTheRanksName) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int round = 0; round < (tries_all() ? kAllRounds : kRounds); ++round) {
    const int rank = static_cast<int>(random() % 2);
    const auto after = std::chrono::milliseconds(random() % kLongestMs);
    SCOPED_TRACE(fmt::format("rank {} after {} ms, seed {}", rank, after.count(), seed));
    e2e::LockstepRun run(e2e::launch("2", {WATCH_FIXTURE, "reduce"}));
    run.rank_pid(1 - rank);
    run.rank_pid(rank);
    std::this_thread::sleep_for(after);
    run.send_to_rank(rank, SIGKILL);
    const e2e::Outcome outcome = run.wait(kLimit);
    EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(fmt::format("rank {} of 2 was killed by SIGKILL", rank)));
    EXPECT_THAT(run.survivors(), IsEmpty());
    if (testing::Test::HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace lockstep::faults
