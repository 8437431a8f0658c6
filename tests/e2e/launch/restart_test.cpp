// SPDX-License-Identifier: Apache-2.0
// Restarts and time limits of `lockstep launch`.
#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/launch/test_fixture.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Returns options for restarts without a noticeable pause.
std::vector<std::string> restarted(int times, const std::vector<std::string>& rest) {
  std::vector<std::string> words = {
      "--max-restarts", std::to_string(times), "--restart-backoff-seconds", "0.01"};
  words.insert(words.end(), rest.begin(), rest.end());
  return launch("2", words);
}

TEST(LaunchRestart, RestartsAllRanksWhichResume) {
  const Outcome outcome = run_clean(restarted(
      3,
      {"sh",
       "-c",
       "echo rank $RANK count $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS resume "
       "${LOCKSTEP_RESUME:-0}; test $TORCHELASTIC_RESTART_COUNT = 2 || exit 5"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("count 0 of 3 resume 0\n"),
          HasSubstr("count 1 of 3 resume 1\n"),
          HasSubstr("rank 0 count 2 of 3 resume 1\n"),
          HasSubstr("rank 1 count 2 of 3 resume 1\n"),
          Not(HasSubstr("count 3"))));
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("restart 1 of 3 in 0.01 s\n"),
          HasSubstr("restart 2 of 3 in 0.02 s\n"),
          Not(HasSubstr("exit code:"))));
}

TEST(LaunchRestart, AStormEndsWithOneSummary) {
  const TestFolder folder;
  const Outcome outcome = run_clean(restarted(
      3, {"--log-dir", folder.path(), "--rdzv-id", "run", "sh", "-c", "echo gone >&2; exit 7"}));
  EXPECT_EQ(outcome.code, 7);
  EXPECT_EQ(count(outcome.err, "exit code:  7\n"), 1);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("attempts:   4, all failed\n    attempt 0: rank "),
          HasSubstr("    attempt 3: rank "),
          ContainsRegex("log: +[^\n]*/run/attempt_3/[01]/stderr.log")));
  EXPECT_EQ(contents(folder / "run/attempt_2/1/stderr.log"), "gone\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "run/attempt_4"));
}

TEST(LaunchRestart, ContinuesIfLogsCannotBeWritten) {
  const TestFolder folder;
  const std::string next = folder / "run/attempt_1";
  const Outcome outcome = run_clean(restarted(
      1,
      {"--log-dir",
       folder.path(),
       "--rdzv-id",
       "run",
       "-r",
       "3",
       "sh",
       "-c",
       "test $TORCHELASTIC_RESTART_COUNT = 1 && echo shown && exit 0; : > " + next + "; exit 7"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "shown\nshown\n");
  EXPECT_THAT(
      outcome.err,
      AllOf(HasSubstr(next + "/0: Not a directory"), HasSubstr("shown on the console only")));
}

TEST(LaunchRestart, SummarisesAsJson) {
  const Outcome outcome = run_clean(restarted(1, {"--json", "--quiet", "sh", "-c", "exit 7"}));
  EXPECT_EQ(outcome.code, 7);
  const auto report = nlohmann::json::parse(outcome.err);
  EXPECT_EQ(report["attempts"], 2);
  EXPECT_EQ(report["failed_attempts"][1]["attempt"], 1);
  EXPECT_EQ(report["failed_attempts"][1]["code"], 7);
}

TEST(LaunchRestart, AFailureRestartsButAWrongCallOrASavedStateDoesNot) {
  EXPECT_EQ(count(run_clean(restarted(2, {kFixture, "crash"})).err, "restart "), 2);
  for (const char* code : {"0", "2", "75"}) {
    const Outcome outcome = run_clean(restarted(2, {"sh", "-c", "exit " + std::string(code)}));
    EXPECT_EQ(outcome.code, std::stoi(code));
    EXPECT_THAT(outcome.err, Not(HasSubstr("restart "))) << code;
  }
}

TEST(LaunchRestart, ASignalIsNotFollowedByARestart) {
  LockstepRun run(restarted(5, {kFixture, "hold"}));
  run.await_out("ready", 2);
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 143);
  EXPECT_THAT(outcome.err, Not(HasSubstr("restart ")));
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchRestart, ASignalEndsTheWaitForARestart) {
  LockstepRun run(launch(
      "2", {"--max-restarts", "1", "--restart-backoff-seconds", "1000", "sh", "-c", "exit 7"}));
  run.await_err("restart 1 of 1 in 1000 s");
  run.send(SIGUSR1);
  run.await_err("received and not forwarded: no rank is running");
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 143);
  EXPECT_THAT(
      outcome.err,
      AllOf(HasSubstr("SIGTERM received; the job is not restarted"), HasSubstr("exit code 7")));
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchRestart, EachAttemptUsesItsOwnPortUnlessOneWasNamed) {
  const Outcome outcome =
      run_clean(restarted(1, {"--quiet", "sh", "-c", "echo port $MASTER_PORT; exit 7"}));
  const std::string first = outcome.out.substr(0, outcome.out.find('\n') + 1);
  EXPECT_THAT(first, ContainsRegex("^port [0-9]+\n$"));
  EXPECT_LE(count(outcome.out, first), 2) << outcome.out;
}

TEST(LaunchTimeout, EndsTheJobWith124) {
  const Outcome polite = run_clean(launch("2", {"--timeout", "0.3", kFixture, "hold"}));
  EXPECT_EQ(polite.code, 124);
  EXPECT_THAT(
      polite.err,
      AllOf(
          HasSubstr("the job has run for 0.3 s, its time limit; SIGTERM sent"),
          HasSubstr("the job ended after its time limit; exit code 124")));
  const Outcome stubborn =
      run_clean(launch("2", {"--timeout", "0.3", "--grace-seconds", "0.2", kFixture, "stubborn"}));
  EXPECT_EQ(stubborn.code, 124);
  EXPECT_THAT(stubborn.err, HasSubstr("rank 1 was killed by SIGKILL"));
}

TEST(LaunchTimeout, CountsTheRestarts) {
  const Outcome outcome = run_clean(launch(
      "1",
      {"--timeout",
       "0.5",
       "--max-restarts",
       "9",
       "--restart-backoff-seconds",
       "1000",
       "sh",
       "-c",
       "exit 7"}));
  EXPECT_EQ(outcome.code, 124);
  EXPECT_THAT(outcome.err, HasSubstr("its time limit; it is not restarted"));
}

TEST(LaunchTimeout, DoesNotAffectAJobThatEndsBefore) {
  EXPECT_EQ(run_clean(launch("2", {"--timeout", "1000", "true"})).code, 0);
}

}  // namespace
}  // namespace lockstep::e2e
