// SPDX-License-Identifier: Apache-2.0
// The log files of `lockstep launch` (--log-dir, --redirects, --tee).
#include <csignal>
#include <filesystem>
#include <sys/resource.h>
#include <sys/stat.h>

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

class LaunchLogs : public testing::Test {
 protected:
  /// Returns the words of a job of two ranks that print a line on each stream.
  std::vector<std::string> job(const std::vector<std::string>& options) const {
    std::vector<std::string> words = {"--quiet", "--log-dir", folder_.path(), "--rdzv-id", "run"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"sh", "-c", "echo out $RANK; echo err $RANK >&2"});
    return launch("2", words);
  }
  std::filesystem::path log(int rank, const std::string& name, int attempt = 0) const {
    return folder_ / ("run/attempt_" + std::to_string(attempt) + "/" + std::to_string(rank) + "/" +
                      name + ".log");
  }
  TestFolder folder_;
};

TEST_F(LaunchLogs, AFolderAloneGetsACopyOfAll) {
  const Outcome outcome = run_clean(job({}));
  EXPECT_EQ(outcome.code, 0);
  for (const int rank : {0, 1}) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(contents(log(rank, "stdout")), "out " + number + "\n");
    EXPECT_EQ(contents(log(rank, "stderr")), "err " + number + "\n");
    EXPECT_THAT(outcome.out, HasSubstr("out " + number + "\n"));
    EXPECT_THAT(outcome.err, HasSubstr("err " + number + "\n"));
  }
  struct stat status {};
  ASSERT_EQ(::stat((folder_ / "run").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
}

TEST_F(LaunchLogs, RedirectedStreamsGoToFilesOnlyAndTeedOnesToBoth) {
  const Outcome outcome = run_clean(job({"-r", "0:3,1:1", "--tee", "1:2"}));
  EXPECT_EQ(contents(log(0, "stdout")), "out 0\n");
  EXPECT_EQ(contents(log(0, "stderr")), "err 0\n");
  EXPECT_EQ(contents(log(1, "stdout")), "out 1\n");
  EXPECT_EQ(contents(log(1, "stderr")), "err 1\n");
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "err 1\n");
}

TEST_F(LaunchLogs, OnlyTheRanksAskedForAreShown) {
  const Outcome outcome = run_clean(job({"--local-ranks-filter", "1", "--redirects", "0"}));
  EXPECT_EQ(outcome.out, "out 1\n");
  EXPECT_EQ(outcome.err, "err 1\n");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(LaunchLogs, TheFailureReportNamesTheFileAndShowsItsEnd) {
  const Outcome outcome = run_clean(launch(
      "2",
      {"--log-dir", folder_.path(), "--rdzv-id", "run", "-r", "3", kFixture, "rank-1-exits", "3"}));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("log:        " + log(1, "stderr").string() + "\n"),
          HasSubstr("    stderr line 25\n"),
          Not(HasSubstr("\nstderr line 25\n"))));
  EXPECT_THAT(contents(log(1, "stderr")), HasSubstr("stderr line 1\n"));
}

TEST_F(LaunchLogs, AFullDiskIsReportedOnceAndTheConsoleOutputContinues) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 65536, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  LockstepRun run(launch(
      "2",
      {"--log-dir",
       folder_.path(),
       "--rdzv-id",
       "run",
       "-r",
       "3",
       kFixture,
       "lines",
       "1000",
       "300"}));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count(outcome.err, "cannot be written: File too large; the job continues"), 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("0 999 "), HasSubstr("1 999 "), Not(HasSubstr("0 0 "))));
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST_F(LaunchLogs, WhereNoFileCanBeNoRankIsStarted) {
  const std::string file = write_text(folder_ / "file", "kept");
  for (const std::string& place : {file, file + "/below", std::string("/proc/none")}) {
    const Outcome outcome =
        run_clean(launch("2", {"--log-dir", place, "sh", "-c", "echo started"}));
    EXPECT_EQ(outcome.code, 2) << place;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(place), HasSubstr("try another --log-dir")));
    EXPECT_EQ(outcome.out, "") << place;
  }
  EXPECT_EQ(contents(file), "kept");
}

}  // namespace
}  // namespace lockstep::e2e
