// SPDX-License-Identifier: Apache-2.0
// A rank is killed within a save. The old or the new checkpoint is complete, and the resumed run
// equals an uninterrupted one.
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/fault_bench.h"

namespace lockstep::faults {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Kill : public FaultBench {
 protected:
  /// Returns whether the new checkpoint exists.
  bool kill_at(int rank, int call) {
    SCOPED_TRACE(
        fmt::format("rank {} killed at call {}; {} repeats it", rank, call, how_to_repeat()));
    const fs::path broken = project("broken", 1);
    const auto [outcome, calls] = run_with_fault(broken, {.rank = rank, .call = call});
    EXPECT_EQ(outcome.code, kKilled) << outcome.err;
    EXPECT_EQ(calls.size(), static_cast<size_t>(call));
    EXPECT_THAT(
        outcome.err, AllOf(HasSubstr("rank " + std::to_string(rank)), HasSubstr("SIGKILL")));
    const auto newest = storage::find_newest(broken / "checkpoints", storage::Verify::kFull);
    const bool is_new = newest.path == checkpoint(broken, 2);
    EXPECT_TRUE(is_new || newest.path == checkpoint(broken, 1));
    expect_unbroken(broken, /*to_the_end=*/false);
    expect_resumes(broken, is_new ? 2 : 1);
    return is_new;
  }
};

TEST_F(Kill, Rank0AtAnyCallOfASaveLeavesTheOldOrTheNewCheckpoint) {
  const int calls = calls_of_a_save(0);
  ASSERT_GT(calls, 30);
  bool seen_new = false;
  for (const int call : calls_to_try(calls)) {
    const bool is_new = kill_at(0, call);
    EXPECT_TRUE(is_new || !seen_new) << "the new one was lost again at call " << call;
    seen_new = is_new;
    if (HasFailure()) {
      break;
    }
  }
  // The last call always comes after the commit.
  EXPECT_TRUE(kill_at(0, calls));
}

/// `--max-restarts` resumes the job without a user.
TEST_F(Kill, ARestartedJobResumesFromItsLastCheckpoint) {
  const fs::path killed = project("killed", 0);
  const Outcome outcome =
      run(killed,
          {"--kill-at", std::to_string(kSecondSave - 1)},
          {"LOCKSTEP_MAX_RESTARTS=1", "LOCKSTEP_RESTART_BACKOFF_SECONDS=0.01"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 of 2 was killed by SIGKILL"));
  EXPECT_THAT(outcome.err, HasSubstr("restart 1 of 1"));
  expect_unbroken(killed);
  EXPECT_TRUE(fs::is_directory(checkpoint(killed, 3)));
  // A run from the start would have saved once more.
  EXPECT_FALSE(fs::exists(checkpoint(killed, 4)));
}

TEST_F(Kill, Rank1AtAnyCallOfASaveLeavesTheOldCheckpoint) {
  const int calls = calls_of_a_save(1);
  ASSERT_GT(calls, 8);
  for (const int call : calls_to_try(calls)) {
    EXPECT_FALSE(kill_at(1, call));
    if (HasFailure()) {
      break;
    }
  }
}

}  // namespace
}  // namespace lockstep::faults
