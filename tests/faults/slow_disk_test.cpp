// SPDX-License-Identifier: Apache-2.0
// Saves to a disk that is slower than the limits of a training step.
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/fault_bench.h"

namespace lockstep::faults {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Every fsync of rank 0 takes 0.4 s, so that a save takes at least 3 s.
class SlowDisk : public FaultBench {
 protected:
  Outcome save_slowly(
      const fs::path& project, const std::string& action, const char* limit, const char* seconds) {
    ::setenv(limit, seconds, 1);
    const auto [outcome, calls] =
        run_with_fault(project, {.rank = 0, .call = -1, .action = action, .kinds = "fsync"});
    ::unsetenv(limit);
    EXPECT_GE(calls.size(), 8U);
    return outcome;
  }
};

TEST_F(SlowDisk, IsNeitherAStallNorATimeout) {
  const fs::path slow = project("slow", 1);
  ::setenv("LOCKSTEP_TIMEOUT_MS", "1500", 1);  // The other ranks wait 2.4 s in an operation.
  const Outcome outcome = save_slowly(slow, "delay", "LOCKSTEP_STALL_TIMEOUT_SECONDS", "2");
  ::unsetenv("LOCKSTEP_TIMEOUT_MS");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_unbroken(slow);
}

TEST_F(SlowDisk, IsWaitedForAfterASignal) {
  const fs::path slow = project("slow", 1);
  const Outcome outcome = save_slowly(slow, "signal", "LOCKSTEP_GRACE_SECONDS", "1");
  EXPECT_EQ(outcome.code, kPreempted) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("a rank is still saving a checkpoint; waiting for it"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("killing")));
  EXPECT_TRUE(fs::is_directory(checkpoint(slow, 2)));
  expect_resumes(slow, 3);  // Saved once more on leaving.
}

TEST_F(SlowDisk, ThatHangsIsNotWaitedForLongerThanAStall) {
  const fs::path hung = project("hung", 1);
  ::setenv("LOCKSTEP_GRACE_SECONDS", "1", 1);
  ::setenv("LOCKSTEP_STALL_TIMEOUT_SECONDS", "2", 1);
  ::setenv("LOCKSTEP_FAULT_DELAY_MS", "60000", 1);
  const auto [outcome, calls] =
      run_with_fault(hung, {.rank = 0, .call = 1, .action = "signal", .kinds = "fsync"});
  for (const char* name :
       {"LOCKSTEP_GRACE_SECONDS", "LOCKSTEP_STALL_TIMEOUT_SECONDS", "LOCKSTEP_FAULT_DELAY_MS"}) {
    ::unsetenv(name);
  }
  EXPECT_EQ(outcome.code, 143) << outcome.err;
  EXPECT_THAT(
      outcome.err, HasSubstr("some processes have not ended in time after SIGTERM; killing them"));
  expect_resumes(hung, 1);
}

}  // namespace
}  // namespace lockstep::faults
