// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/lines/exec_tracker.h"

#include <csignal>
#include <mutex>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/tracking/test_folder.h"
#include "lockstep/tracking/values/histogram.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

class Exec : public testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](const std::string& line) { warnings_.push_back(line); });
  }
  void TearDown() override { set_log_sink(nullptr); }

  std::filesystem::path spools() const { return folder_ / "run"; }
  std::string output() const { return folder_ / "output"; }
  std::vector<json> received() const {
    std::vector<json> lines;
    for (const std::string& line : lines_of(output())) {
      lines.push_back(json::parse(line));
    }
    return lines;
  }

  TestFolder folder_;
  std::vector<std::string> warnings_;
};

TEST_F(Exec, TheProgramReadsJsonLines) {
  ExecTracker tracker(spools(), {.command = "cat > " + output()});
  tracker.store_config({{"lr", 0.1}});
  tracker.log({{"loss", 0.5}}, 1);
  tracker.log_text({{"note", "a"}}, 2);
  tracker.log_histograms({{"w", histogram_of(std::vector<double>{1, 2})}}, 3);
  tracker.finish();
  const std::vector<json> lines = received();
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0].at("config"), (json{{"lr", 0.1}}));
  EXPECT_EQ(lines[1].at("loss"), 0.5);
  EXPECT_EQ(lines[1].at("step"), 1);
  EXPECT_EQ(lines[2].at("text").at("note"), "a");
  EXPECT_EQ(lines[3].at("histograms").at("w").at("count"), 2);
  EXPECT_EQ(lines[4].at("status"), "finished");
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(spools()));
}

TEST_F(Exec, AProgramThatDoesNotReadDoesNotStopTheCaller) {
  const std::string go = folder_ / "go";
  ExecTracker tracker(
      spools(),
      {.command = "while ! test -e " + go + "; do sleep 0.02; done; cat > " + output(),
       .finish_timeout_s = 60});
  for (int step = 0; step < 20000; ++step) {  // Far more than a pipe holds.
    tracker.log({{"loss", 0.5}}, step);
  }
  write_text(go, "");
  tracker.finish();
  EXPECT_EQ(received().size(), 20001U);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Exec, AProgramThatEndsIsReportedAndItsLinesAreKept) {
  ExecTracker tracker(spools(), {.command = "read line; exit 3"});
  const std::filesystem::path spool = tracker.spool_path();
  siginfo_t info{};
  tracker.log({{"loss", 1}}, 0);
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(tracker.pid()), &info, WEXITED | WNOWAIT), 0);
  tracker.log({{"loss", 2}}, 1);
  tracker.flush();
  tracker.log({{"loss", 3}}, 2);
  tracker.finish();
  ASSERT_GE(warnings_.size(), 1U);
  EXPECT_THAT(
      warnings_[0],
      AllOf(HasSubstr("'read line; exit 3' ended with exit code 3"), HasSubstr(spool.string())));
  EXPECT_EQ(lines_of(spool).size(), 4U);
}

TEST_F(Exec, AProgramThatDoesNotEndIsNotWaitedForWithoutLimit) {
  ExecTracker tracker(spools(), {.command = "exec sleep 1000", .finish_timeout_s = 0.05});
  tracker.log({{"loss", 1}}, 0);
  tracker.finish();
  ::kill(tracker.pid(), SIGKILL);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(warnings_[0], HasSubstr("still runs 0.05 s after the end of its input"));
}

TEST_F(Exec, TheProgramsExitCodeIsReported) {
  ExecTracker(spools(), {.command = "cat > /dev/null; exit 4"}).finish();
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("ended with exit code 4")));
}

TEST_F(Exec, AnEmptyCommandIsRefused) {
  EXPECT_THAT(
      [&] { ExecTracker(spools(), {}); },
      ThrowsMessage<ConfigError>(HasSubstr("the command is empty")));
}

TEST_F(Exec, AProgramReadsTheLinesOfAKilledProcessToTheEnd) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ExecTracker tracker(
        spools(), {.command = "cat > " + output() + "; touch " + output() + ".done"});
    for (int step = 0; step < 100; ++step) {
      tracker.log({{"loss", 0.5}}, step);
    }
    tracker.flush();
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  while (!std::filesystem::exists(output() + ".done")) {
    ::usleep(5000);
  }
  EXPECT_EQ(received().size(), 100U);
}

}  // namespace
}  // namespace lockstep::tracking
