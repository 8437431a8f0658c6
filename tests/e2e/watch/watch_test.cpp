// SPDX-License-Identifier: Apache-2.0
// Jobs that stall: the reports, exit codes and dumps of `lockstep launch`.
#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Runs jobs whose dumps go to the test's folder.
class Watch : public testing::Test {
 protected:
  Outcome run(
      const std::string& fault,
      std::vector<std::string> options = {},
      const std::string& steps = "20") {
    options.insert(options.end(), {WATCH_FIXTURE, fault, steps});
    return run_program(std::move(options));
  }
  /// `words`: options of the launcher, the program and its arguments.
  Outcome run_program(std::vector<std::string> words) {
    words.insert(words.begin(), {"--stall-timeout", stall_timeout_});
    LockstepRun job(launch("2", words), variables());
    Outcome outcome = job.wait();
    EXPECT_THAT(job.survivors(), IsEmpty());
    return outcome;
  }
  std::vector<std::string> variables() const {
    return {"XDG_STATE_HOME=" + folder_.path().string()};
  }
  /// Returns the newest dump, as `lockstep flight --json` prints it.
  nlohmann::json flight() const {
    const Outcome shown = run_lockstep({"flight", "--json"}, variables());
    EXPECT_EQ(shown.code, 0) << shown.out << shown.err;
    return nlohmann::json::parse(shown.out);
  }

  TestFolder folder_;
  std::string stall_timeout_ = "1.5";
};

TEST_F(Watch, NamesARankThatIsStopped) {
  const Outcome outcome = run("stop");
  EXPECT_EQ(outcome.code, 124) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(
          ContainsRegex(
              "rank 1 is stopped \\(SIGSTOP, SIGTSTP or a debugger\\); needed in "
              "all_reduce\\(avg\\) of float\\[[0-9]+\\] in backward, in which rank 0 has waited"),
          ContainsRegex("rank 0 +step 5, in all_reduce"),
          ContainsRegex("rank 1 +step 5, stopped by a signal"),
          HasSubstr("exit code:  124"),
          HasSubstr("lockstep flight ")));
  const nlohmann::json dump = flight();
  ASSERT_EQ(dump.at("ranks").size(), 2U);
  EXPECT_EQ(dump.at("ranks")[1].at("step"), 5);
  EXPECT_THAT(dump.at("why").get<std::string>(), HasSubstr("rank 1 is stopped"));
}

TEST_F(Watch, NamesARankThatIsStoppedWhileItExits) {
  const Outcome outcome = run("stop-exiting");
  EXPECT_EQ(outcome.code, 124) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(
          ContainsRegex("rank 1 of 2 stalled after .*; rank 1 has been stopped \\(SIGSTOP or "
                        "SIGTSTP\\) for 1\\.5 s; send SIGCONT to continue it"),
          ContainsRegex("rank 1 +step 20, has left the job, stopped by a signal")));
}

TEST_F(Watch, NamesAStoppedRankThatIsNotALockstepProgram) {
  const Outcome outcome =
      run_program({"sh", "-c", "test $RANK = 0 || kill -STOP $$; exec sleep 0.1"});
  EXPECT_EQ(outcome.code, 124) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("; rank 1 has been stopped (SIGSTOP or SIGTSTP) for 1.5 s"),
          HasSubstr("rank 1      has not joined the job, stopped by a signal"),
          ContainsRegex("host: +[^ ]+, pid [1-9]")));
}

TEST_F(Watch, DoesNotEndAProgramThatIsNotOursAndSleeps) {
  const Outcome outcome = run_program({"sleep", "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Watch, NamesARankThatWasStoppedBeforeItJoined) {
  stall_timeout_ = "60";  // The other one loses patience first.
  const Outcome outcome = run("stop-before-joining", {"--env", "LOCKSTEP_JOIN_TIMEOUT_MS=1500"});
  EXPECT_EQ(outcome.code, 124) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(
          ContainsRegex("rank 1 of 2 stalled after .*; it was stopped \\(SIGSTOP or SIGTSTP\\) "
                        "before it joined the job, and rank 0 waited for it\n"),
          HasSubstr("also:       rank 0 ended with exit code 1")));
}

TEST_F(Watch, ARankThatEndsWith0BeforeItJoinsEndsTheJobAtOnce) {
  for (const char* const rank : {"0", "1"}) {
    const std::string other = rank[0] == '0' ? "1" : "0";
    const Outcome outcome = run("end-before-joining", {"--env", std::string("FAULT_RANK=") + rank});
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_THAT(
        outcome.err,
        ContainsRegex(
            std::string("rank ") + rank +
            " of 2 ended with exit code 0 after .*; it ended before "
            "it joined the job, and rank " +
            other +
            " waits for it; .*; the other rank was "
            "stopped"));
  }
}

TEST_F(Watch, NamesARankThatDoesNotArrive) {
  const Outcome outcome = run("sleep");
  EXPECT_EQ(outcome.code, 124) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(
          ContainsRegex("rank 1 has not started all_reduce\\(avg\\) of float\\[[0-9]+\\] in "
                        "backward, in which rank "
                        "0 has waited for [12]\\.[0-9] s"),
          ContainsRegex("rank 1 +step 5, in no operation; the last was all_reduce")));
}

TEST_F(Watch, NamesTheRankThatLeavesTheOthersAlone) {
  const Outcome outcome = run("alone");
  EXPECT_EQ(outcome.code, 124) << outcome.err;
  EXPECT_THAT(outcome.err, ContainsRegex("rank 0 has not started .*, in which rank 1 has waited"));
}

TEST_F(Watch, NamesARankThatEndsBeforeTheOthers) {
  const Outcome outcome = run("leave");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  // Its process may still be ending.
  EXPECT_THAT(
      outcome.err,
      ContainsRegex("(rank 1 of 2 ended with exit code 0 after .*; its last step was 5|rank 1 left "
                    "the job earlier, after step 5), and rank 0 still needed it.*; all ranks must "
                    "run the same number of steps"));
}

TEST_F(Watch, BlamesARankThatCallsExit) {
  const Outcome outcome = run("exit-0");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      ContainsRegex("rank 1 of 2 ended with exit code 0 after .*; its last step was 5, and rank 0 "
                    "still needed it in backward; .*not by exit"));
}

TEST_F(Watch, RanksWithDifferentNumbersOfBatchesGetAnError) {
  const Outcome outcome = run("fewer");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  // Both operations, on both ranks.
  EXPECT_THAT(
      outcome.err,
      AllOf(
          ContainsRegex("\\[rank 0\\] error: .*all_reduce\\(avg\\)"),
          ContainsRegex("\\[rank 1\\] error: .*all_reduce\\(sum\\)")));
}

TEST_F(Watch, DoesNotEndARunningJob) {
  const Outcome outcome = run("");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("slow")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "lockstep/flights"));
}

TEST_F(Watch, WarnsOfASlowRankAndDoesNotEndTheJob) {
  const Outcome outcome = run("slow", {}, "80");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      ContainsRegex("rank 1 is slow: it was last in [0-9]+ of the last [0-9]+ operations"));
  EXPECT_EQ(count(outcome.err, "is slow"), 1);
}

TEST_F(Watch, CanBeTurnedOff) {
  LockstepRun job(launch("2", {"--stall-timeout", "0", WATCH_FIXTURE, "stop"}), variables());
  job.send(SIGTERM);
  EXPECT_EQ(job.wait().code, 143);
  EXPECT_THAT(job.survivors(), IsEmpty());
}

TEST_F(Watch, LeavesADumpOfAJobThatFailed) {
  const Outcome outcome = run("kill");
  EXPECT_EQ(outcome.code, 137) << outcome.err;
  const nlohmann::json dump = flight();
  EXPECT_EQ(dump.at("ranks")[1].at("step"), 5);
  EXPECT_EQ(dump.at("ranks")[1].at("running"), false);
}

TEST_F(Watch, PutsTheDumpIntoTheLogFolder) {
  const std::filesystem::path logs = folder_ / "logs";
  const Outcome outcome = run("stop", {"--log-dir", logs.string(), "--rdzv-id", "job"});
  EXPECT_EQ(outcome.code, 124) << outcome.err;
  const auto path = logs / "job" / "attempt_0" / "flight.json";
  EXPECT_TRUE(std::filesystem::exists(path)) << outcome.err;
  EXPECT_THAT(
      run_lockstep({"flight", path.string()}).out,
      AllOf(HasSubstr("rank 1 is stopped"), HasSubstr("all_reduce(avg) of float")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "lockstep/flights"));
}

TEST_F(Watch, RestartsAStalledJobIfRestartsAreLeft) {
  const Outcome outcome = run("stop", {"--max-restarts", "1", "--restart-backoff-seconds", "0.01"});
  EXPECT_EQ(outcome.code, 124) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("restart 1 of 1"), HasSubstr("attempts:   2")));
}

TEST_F(Watch, ReportsAMissingDump) {
  const Outcome outcome = run_lockstep({"flight"}, variables());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("no flight dump was found"));
  EXPECT_EQ(run_lockstep({"flight", (folder_ / "none.json").string()}).code, 2);
}

}  // namespace
}  // namespace lockstep::e2e
