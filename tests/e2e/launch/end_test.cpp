// SPDX-License-Identifier: Apache-2.0
// The end of jobs: a failing rank, a killed launcher, a signal, and no remaining processes.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/launch/test_fixture.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(LaunchFailure, TheFailingRanksCodeIsTheJobsAndItsLastLinesAreShownLast) {
  LockstepRun run(launch("2", {kFixture, "rank-1-exits", "3"}));
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("lockstep: rank 1 of 2 ended with exit code 3 after "),
          HasSubstr("; the other rank was stopped\n"),
          HasSubstr("exit code:  3\n"),
          HasSubstr("rank-1-exits 3\n"),
          HasSubstr("    stderr line 6\n"),
          Not(HasSubstr("    stderr line 5\n")),
          EndsWith("    stderr line 25\n")));
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchFailure, CanBeReportedAsJson) {
  const Outcome outcome = run_lockstep(launch("2", {"--json", "--quiet", "sh", "-c", "exit 4"}));
  EXPECT_EQ(outcome.code, 4);
  const auto report = nlohmann::json::parse(outcome.err);
  EXPECT_EQ(report["exit_code"], 4);
  EXPECT_EQ(report["cause"]["code"], 4);
  EXPECT_EQ(report["world_size"], 2);
}

/// Some init and container tools start programs with SIGCHLD ignored.
TEST(LaunchFailure, IsSeenWhereChildrenAreIgnored) {
  LockstepRun run(
      {"-c", "trap '' CHLD; exec \"$0\" launch -n 1 sh -c 'exit 3'", LOCKSTEP_BIN_DIR "/lockstep"},
      {},
      "",
      "/bin/bash");
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 3) << outcome.err;
}

class LaunchKilledRank : public testing::TestWithParam<int> {};

TEST_P(LaunchKilledRank, EndsTheJobWith137AndIsNamed) {
  LockstepRun run(launch("3", {kFixture, "stubborn"}));
  run.await_out("ready", 3);
  run.send_to_rank(GetParam(), SIGKILL);
  const Outcome outcome = run.wait(std::chrono::seconds(5));
  EXPECT_EQ(outcome.code, 137);
  EXPECT_THAT(
      outcome.err,
      HasSubstr(
          "rank " + std::to_string(GetParam()) + " of 3 was killed by SIGKILL (signal 9) after"));
  EXPECT_THAT(outcome.err, HasSubstr("the other ranks were stopped"));
  EXPECT_THAT(run.survivors(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(EachRank, LaunchKilledRank, testing::Values(0, 1, 2));

TEST(LaunchFailure, ACrashEndsTheJobWithItsSignal) {
  const Outcome outcome = run_lockstep(launch("2", {kFixture, "crash"}));
  EXPECT_EQ(outcome.code, 139);
  EXPECT_THAT(
      outcome.err,
      AllOf(ContainsRegex("rank [01] of 2 was killed by SIGSEGV"), HasSubstr("also:")));
}

TEST(LaunchFailure, AChildOfARankEndsWithIt) {
  LockstepRun run(
      launch("2", {"sh", "-c", "sleep 1000 & echo started; test $RANK = 0 && wait; exit 5"}));
  EXPECT_EQ(run.wait().code, 5);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchFailure, ALeftoverThatHoldsTheOutputDoesNotHangTheJob) {
  LockstepRun run(launch("2", {"sh", "-c", "(trap '' TERM; sleep 1000) & exit 0"}));
  EXPECT_EQ(run.wait().code, 0);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchKilledLauncher, LeavesNoRank) {
  LockstepRun run(launch("2", {kFixture, "stubborn"}));
  run.await_out("ready", 2);
  run.send(SIGKILL);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchKilledLauncher, LeavesNothingThatARankHasStarted) {
  LockstepRun run(launch("2", {"bash", "-c", "trap '' TERM; sleep 1000 & echo started; wait"}));
  run.await_out("started", 2);
  run.send(SIGKILL);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

class LaunchSignal : public testing::TestWithParam<int> {};

TEST_P(LaunchSignal, IsPassedOnToEveryRank) {
  LockstepRun run(launch("2", {kFixture, "save"}));
  run.await_out("ready", 2);
  run.send(GetParam());
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75);
  const std::string got = "got " + std::to_string(GetParam()) + "\n";
  EXPECT_THAT(outcome.out, ContainsRegex(got + got + "$"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 0 of 2")));
}

INSTANTIATE_TEST_SUITE_P(
    EachOne, LaunchSignal, testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2));

TEST(LaunchStop, RanksThatDieOfTheSignalAreNotAFailure) {
  LockstepRun run(launch("2", {kFixture, "hold"}));
  run.await_out("ready", 2);
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 143);
  EXPECT_THAT(outcome.err, EndsWith("lockstep: the job ended after SIGTERM; exit code 143\n"));
}

TEST(LaunchStop, RanksThatDoNotListenAreKilledAfterTheGrace) {
  LockstepRun run(launch("2", {"--grace-seconds", "0.2", kFixture, "stubborn"}));
  run.await_out("ready", 2);
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 143);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 was killed by SIGKILL"));
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchStop, ASecondSignalKillsAtOnce) {
  LockstepRun run(launch("2", {"--grace-seconds", "1000", kFixture, "stubborn"}));
  run.await_out("ready", 2);
  run.send(SIGINT);
  run.await_err("SIGINT received and forwarded");
  run.send(SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchStop, ASuspendedRankEndsToo) {
  LockstepRun run(launch("2", {kFixture, "hold"}));
  run.send_to_rank(1, SIGSTOP);
  run.await_out("ready", 2);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().code, 143);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchFootprint, TheLauncherStaysSmall) {
  LockstepRun run(launch("2", {kFixture, "lines-and-hold", "20000", "300"}));
  run.rank_pid(0);
  run.rank_pid(1);
  const long peak_kib = process_status(run.pid(), "VmHWM");
  RecordProperty("peak_kib", std::to_string(peak_kib));
  EXPECT_GT(peak_kib, 0);
  // A sanitizer's shadow memory does not count.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(peak_kib, 20 * 1024);
#endif
}

TEST(LaunchFootprint, TheCommandLineLinksNoTorch) {
  FILE* pipe = ::popen("ldd " LOCKSTEP_BIN_DIR "/lockstep", "r");
  std::string out;
  std::array<char, 4096> chunk;
  for (size_t got = 0; (got = ::fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) {
    out.append(chunk.data(), got);
  }
  EXPECT_EQ(::pclose(pipe), 0);
  // Compares the libraries' names only, since a printed address may contain c10.
  EXPECT_THAT(
      out, AllOf(HasSubstr("libc.so"), Not(HasSubstr("libtorch")), Not(HasSubstr("libc10"))));
}

TEST(LaunchFootprint, AHundredJobsLeaveNothingBehind) {
  const int descriptors = open_descriptors();
  for (int i = 0; i < 100; ++i) {
    LockstepRun run(launch("2", {"--quiet", "true"}));
    const Outcome outcome = run.wait();
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    ASSERT_THAT(run.survivors(), IsEmpty());
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

}  // namespace
}  // namespace lockstep::e2e
