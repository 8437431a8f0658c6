// SPDX-License-Identifier: Apache-2.0
// lockstep::launch in a real program: results, errors, signals, and no remaining processes.
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Runs the fixture to its end; expects that no process of it remains.
Outcome run_fixture(
    const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {}) {
  LockstepRun run(arguments, variables, "", LAUNCH_SELF_FIXTURE);
  Outcome outcome = run.wait();
  EXPECT_THAT(run.survivors(), IsEmpty());
  return outcome;
}

TEST(LaunchFromCode, ReturnsTheResultOfEachRank) {
  const Outcome outcome = run_fixture({"results"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "3 13 23 \n");
}

TEST(LaunchFromCode, TrainsAndReturnsTensors) {
  const Outcome outcome = run_fixture({"tensors"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "1\n");
}

TEST(LaunchFromCode, GivesTheRanksTheSameArgumentsAndContinuesOnce) {
  const Outcome outcome = run_fixture({"nothing", "an argument with spaces"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count(outcome.out, "an argument with spaces\n"), 2) << outcome.out;
  EXPECT_EQ(count(outcome.out, "after\n"), 1) << outcome.out;
}

TEST(LaunchFromCode, LaterCallsSeeTheResultsAndErrorsOfEarlierOnes) {
  const Outcome outcome = run_fixture({"twice"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1 1 [lockstep::launch] rank 0 of 1 failed: the second\n"));
}

TEST(LaunchFromCode, CallsAfterARefusedOneRunTheirRanks) {
  const Outcome outcome = run_fixture({"refused"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "1 [lockstep::launch] got 0 ranks; expected at least 1\n");
}

TEST(LaunchFromCode, ThrowsTheFirstErrorWithItsRank) {
  const Outcome outcome = run_fixture({"throw"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("[lockstep::launch] rank 1 of 2 failed: no such picture\n"));
}

TEST(LaunchFromCode, AConfigErrorStaysOne) {
  const Outcome outcome = run_fixture({"config"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 of 2 failed: [lr] it must be positive"));
}

TEST(LaunchFromCode, NamesARankThatWasKilled) {
  const Outcome outcome = run_fixture({"kill"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 of 2 was killed by SIGKILL (signal 9) after "));
}

TEST(LaunchFromCode, RestartsAsTheLauncherDoes) {
  const Outcome outcome = run_fixture({"restarted"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "1 1 \n");
}

TEST(LaunchFromCode, RefusesInvalidOptions) {
  const Outcome before = run_fixture({"before"});
  EXPECT_EQ(before.code, 1);
  EXPECT_THAT(before.err, HasSubstr("rank 0 of 2 ended before it reached launch(); main must"));
  const Outcome nested = run_fixture({"nested"});
  EXPECT_EQ(nested.code, 2);
  EXPECT_THAT(
      nested.err,
      HasSubstr("launch() cannot be called by the function that launch() runs; call it from main"));
  const Outcome none = run_fixture({"none"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("got 0 ranks; expected at least 1"));
  const Outcome rank = run_lockstep(launch("2", {LAUNCH_SELF_FIXTURE, "results"}));
  EXPECT_EQ(rank.code, 2);
  EXPECT_THAT(rank.err, HasSubstr("this process is already rank "));
}

TEST(SharedParameters, AreInTheMemoryOfAHostOnce) {
  const Outcome outcome = run_fixture({"memory"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  double own = 0;
  double shared = 0;
  std::istringstream(outcome.out) >> own >> shared;
  EXPECT_GT(own, 3 * (16 + 32 + 16)) << "or this measures nothing";
  // Two of three copies of 16 MiB of parameters and 32 of state.
  EXPECT_GT(own - shared, 0.95 * 2 * 48) << own << " MiB, shared " << shared;
}

TEST(LaunchFromCode, PassesSignalsOnAndEndsAsTheRanksDo) {
  LockstepRun run({"wait"}, {}, "", LAUNCH_SELF_FIXTURE);
  run.await_out("ready\n", 2);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().code, 128 + SIGTERM);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchFromCode, EndsWith75IfTheRanksSavedTheirState) {
  LockstepRun run({"save"}, {}, "", LAUNCH_SELF_FIXTURE);
  run.await_out("ready\n", 2);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().code, 75);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchFromCode, LeavesNoRankIfItIsKilled) {
  LockstepRun run({"wait"}, {}, "", LAUNCH_SELF_FIXTURE);
  run.await_out("ready\n", 2);
  run.send(SIGKILL);
  EXPECT_EQ(run.wait().code, 128 + SIGKILL);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::e2e
