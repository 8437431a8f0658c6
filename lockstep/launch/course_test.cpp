// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/course.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using testing::HasSubstr;

/// A course over real processes, each a shell with its own script; the test plays the launcher's
/// loop.
class CourseTest : public testing::Test {
 protected:
  void start(const std::vector<std::string>& scripts) {
    for (const std::string& script : scripts) {
      programs_.push_back({"/bin/sh", {"sh", "-c", script}, false});
    }
    for (const Program& program : programs_) {
      ranks_.add(
          start_child({.program = &program, .environment = {"PATH=/usr/bin:/bin"}}, "a rank"));
    }
  }
  /// Until `rank` has printed its first line, which says that its traps are set.
  void await_line(int rank) {
    LinePump& out = ranks_.all()[static_cast<size_t>(rank)].out;
    while (screen_.empty()) {
      pollfd item{.fd = out.fd(), .events = POLLIN, .revents = 0};
      ::poll(&item, 1, -1);
      out.pump();
    }
    screen_ = Sink(null_.get());
  }
  void await_end(int rank) {
    pollfd item{
        .fd = ranks_.all()[static_cast<size_t>(rank)].pidfd.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&item, 1, -1), 1);
    course_.on_endings();
  }
  /// The launcher's loop. `impatient`: a deadline has come as soon as nothing else happens for a
  /// while.
  int finish(bool impatient = false) {
    while (!course_.is_over()) {
      std::vector<pollfd> items;
      ranks_.await(items);
      constexpr int kTickMs = 20;
      const bool nothing = ::poll(items.data(), items.size(), kTickMs) == 0;
      ranks_.pump(items);
      course_.on_endings();
      const auto deadline = course_.deadline();
      if (nothing && deadline && (impatient || Clock::now() >= *deadline)) {
        course_.on_deadline();
      }
    }
    ranks_.close();
    course_.say_how_it_ended();
    return course_.exit_code();
  }

  UniqueFd null_{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  Sink screen_{null_.get()};
  std::vector<Program> programs_;
  RankSet ranks_{screen_, screen_, false};
  std::string said_;
  bool is_saving_ = false;
  Course course_{
      ranks_,
      30,
      [this](const std::string& text) { said_ += text + "\n"; },
      {},
      [this] { return is_saving_; }};
};

TEST_F(CourseTest, EndsWithZeroWhenAllDo) {
  start({"exit 0", "exit 0"});
  EXPECT_EQ(finish(), 0);
  EXPECT_EQ(course_.cause(), std::nullopt);
  EXPECT_EQ(said_, "");
}

TEST_F(CourseTest, ARankThatLeavesWithZeroStopsNobody) {
  start({"exit 0", "read line < /dev/null; exit 4"});
  EXPECT_EQ(finish(), 4);
  EXPECT_EQ(course_.cause()->rank, 1);
  EXPECT_EQ(course_.stopped(), 0);
}

TEST_F(CourseTest, AStalledRankIsNoneOfTheOthersThatAreStopped) {
  start({"exec sleep 1000", "exec sleep 1000"});
  course_.on_stall({.rank = 1, .ending = {}, .remark = "stands still", .stalled = true});
  finish();
  EXPECT_EQ(course_.stopped(), 1);
}

TEST_F(CourseTest, AStoppedRankIsTheCauseOfTheFailureOfWhoHasWaitedForIt) {
  start({"exit 1", "exec sleep 1000"});
  await_end(0);
  course_.blame({.rank = 1, .ending = {}, .remark = "was stopped", .stalled = true});
  EXPECT_EQ(finish(), 124);
  EXPECT_EQ(course_.cause()->rank, 1);
  EXPECT_EQ(course_.also_failed().at(0).rank, 0);
  EXPECT_EQ(course_.stopped(), 0);
}

TEST_F(CourseTest, ARankThatEndedWith0AndIsMissedByTheOthersIsAFailure) {
  start({"exit 0", "exec sleep 1000"});
  await_end(0);
  course_.on_stall({.rank = 0, .ending = {}, .remark = "it never joined"});
  EXPECT_EQ(finish(), 1);
  EXPECT_THAT(course_.cause()->sentence(2), HasSubstr("rank 0 of 2 ended with exit code 0 after "));
  EXPECT_EQ(course_.stopped(), 1);
}

TEST_F(CourseTest, APauseIsNoTimeToFinish) {
  start({"exit 75", "exec sleep 1000"});
  await_end(0);
  const auto before = course_.deadline();
  course_.put_off(std::chrono::seconds(100));
  EXPECT_EQ(course_.deadline(), *before + std::chrono::seconds(100));
  finish(true);
}

TEST_F(CourseTest, ARankThatSavesIsWaitedFor) {
  start({"trap '' TERM; echo ready; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1; done; exit 75"});
  await_line(0);
  is_saving_ = true;
  course_.on_signal(SIGTERM);
  course_.on_deadline();
  EXPECT_THAT(said_, HasSubstr("a rank is still saving, and is waited for"));
  course_.on_deadline();
  is_saving_ = false;
  course_.on_deadline();  // The grace begins anew.
  EXPECT_GT(*course_.deadline(), in_seconds(25));
  EXPECT_EQ(finish(), 75);
  EXPECT_EQ(said_.find("killing"), std::string::npos);
}

TEST_F(CourseTest, ARankThatSavesIsNotWaitedForOnceItIsKnownToBeInVain) {
  start({"trap '' TERM; echo ready; while :; do sleep 0.1; done"});
  await_line(0);
  is_saving_ = true;
  course_.on_signal(SIGTERM);
  course_.on_end_elsewhere();
  course_.on_deadline();
  EXPECT_EQ(finish(), 143);
}

TEST_F(CourseTest, AnEndElsewhereLeavesNoMoreThanTwoSecondsOfTheGrace) {
  start({"trap '' TERM; echo ready; while :; do sleep 1; done"});
  await_line(0);
  course_.on_signal(SIGTERM);
  EXPECT_GT(*course_.deadline(), in_seconds(25));
  course_.on_end_elsewhere();
  EXPECT_LE(*course_.deadline(), in_seconds(2));
  EXPECT_EQ(finish(), 143);
}

TEST_F(CourseTest, TheFirstFailureStopsTheOthersAndIsTheCause) {
  start({"exec sleep 1000", "exit 3", "exec sleep 1000"});
  await_end(1);
  EXPECT_EQ(finish(), 3);
  EXPECT_EQ(course_.cause()->rank, 1);
  EXPECT_EQ(course_.stopped(), 2);
  EXPECT_TRUE(course_.also_failed().empty());
}

TEST_F(CourseTest, AKilledRankIsTheCauseThoughItsPeerFellFirst) {
  start({"exit 1", "read line; kill -9 $$", "exec sleep 1000"});
  await_end(0);
  ::kill(ranks_.all()[1].pid, SIGKILL);
  await_end(1);
  EXPECT_EQ(finish(), 137);
  EXPECT_EQ(course_.cause()->rank, 1);
  ASSERT_EQ(course_.also_failed().size(), 1U);
  EXPECT_EQ(course_.also_failed()[0].rank, 0);
}

TEST_F(CourseTest, ARankThatWillNotStopIsKilled) {
  start({"trap '' TERM; echo ready; while :; do sleep 1000; done", "exit 3"});
  await_line(0);
  await_end(1);
  EXPECT_EQ(finish(), 3);
  EXPECT_EQ(ranks_.all()[0].ending->value, SIGKILL);
}

TEST_F(CourseTest, ASignalIsPassedOnAndNoFailure) {
  start({"exec sleep 1000", "exec sleep 1000"});
  course_.on_signal(SIGTERM);
  EXPECT_EQ(finish(), 128 + SIGTERM);
  EXPECT_EQ(course_.cause(), std::nullopt);
  EXPECT_THAT(said_, HasSubstr("SIGTERM received and passed on; the ranks have 30 s to finish"));
  EXPECT_THAT(said_, HasSubstr("the job ended after SIGTERM; exit code 143"));
}

TEST_F(CourseTest, RanksThatSaveAndLeaveOnASignalEndTheJobWith75) {
  start({"trap 'exit 75' TERM; echo ready; while :; do sleep 0.01; done"});
  await_line(0);
  course_.on_signal(SIGTERM);
  EXPECT_EQ(finish(), 75);
}

TEST_F(CourseTest, RanksThatFinishOnASignalEndTheJobWithZero) {
  start({"trap 'exit 0' INT; echo ready; while :; do sleep 0.01; done"});
  await_line(0);
  course_.on_signal(SIGINT);
  EXPECT_EQ(finish(), 0);
}

TEST_F(CourseTest, WhatAWrapperRunsKeepsItsTimeToFinish) {
  start({"(trap 'sleep 0.3; exit 0' TERM; echo ready; while :; do sleep 0.01; done) & wait"});
  await_line(0);
  course_.on_signal(SIGTERM);
  await_end(0);
  EXPECT_FALSE(course_.is_over()) << "the wrapper has ended, its program has not";
  EXPECT_EQ(finish(), 143);
}

TEST_F(CourseTest, ASecondSignalKillsAtOnce) {
  start({"trap '' TERM; echo ready; while :; do sleep 1000; done"});
  await_line(0);
  course_.on_signal(SIGTERM);
  course_.on_signal(SIGINT);
  EXPECT_EQ(course_.deadline(), std::nullopt);
  EXPECT_EQ(finish(), 143);
  EXPECT_THAT(said_, HasSubstr("SIGINT received; killing the ranks now"));
  EXPECT_THAT(said_, HasSubstr("rank 0 was killed by SIGKILL"));
}

TEST_F(CourseTest, ASuspendedRankIsWokenToHearTheSignal) {
  start({"trap 'exit 75' TERM; echo ready; while :; do sleep 0.01; done"});
  await_line(0);
  ranks_.send(SIGSTOP);
  course_.on_signal(SIGTERM);
  EXPECT_EQ(finish(), 75);
}

TEST_F(CourseTest, AnEarlyWarningIsPassedOnAndTheJobGoesOn) {
  start({"trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done"});
  await_line(0);
  course_.on_signal(SIGUSR1);
  EXPECT_EQ(course_.deadline(), std::nullopt);
  EXPECT_EQ(finish(), 75);
}

TEST_F(CourseTest, RanksThatDieOfAnEarlyWarningAreNoFailure) {
  start({"exec sleep 1000", "trap '' USR1; echo ready; while :; do sleep 1000; done"});
  await_line(1);
  course_.on_signal(SIGUSR1);
  EXPECT_EQ(finish(), 128 + SIGUSR1);
  EXPECT_EQ(course_.cause(), std::nullopt);
}

TEST_F(CourseTest, ASignalThatReachedTheRanksFirstIsNoFailure) {
  start({"kill -TERM $$", "exec sleep 1000"});
  await_end(0);
  course_.on_signal(SIGTERM);
  EXPECT_EQ(finish(), 143);
  EXPECT_EQ(course_.cause(), std::nullopt);
}

TEST_F(CourseTest, ARankThatStaysWhenTheOthersHaveSavedIsTheCause) {
  start({"exit 75", "exec sleep 1000"});
  await_end(0);
  EXPECT_NE(course_.deadline(), std::nullopt);
  EXPECT_EQ(finish(true), 143);
  EXPECT_EQ(course_.cause()->rank, 1);
  EXPECT_THAT(
      course_.cause()->remark, HasSubstr("had not ended 30 s after another rank had saved"));
}

TEST_F(CourseTest, WhenNobodyReadsTheOutputTheJobEnds) {
  start({"exec sleep 1000"});
  course_.on_output_lost(EPIPE);
  EXPECT_EQ(finish(), 128 + SIGPIPE);
  EXPECT_EQ(said_, "");
}

TEST_F(CourseTest, OutputThatCannotBeWrittenEndsTheJobWithAWord) {
  start({"exec sleep 1000"});
  course_.on_output_lost(ENOSPC);
  EXPECT_EQ(finish(), 1);
  EXPECT_THAT(said_, HasSubstr("No space left"));
}

TEST_F(CourseTest, AJobWhoseTimeIsUpEndsWith124HoweverItsRanksDo) {
  start({"trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", "exec sleep 1000"});
  await_line(0);
  course_.on_timeout(5);
  EXPECT_EQ(finish(), 124);
  EXPECT_THAT(said_, HasSubstr("has run for 5 s, its time limit; SIGTERM sent"));
  EXPECT_THAT(said_, HasSubstr("the job ended after its time limit; exit code 124"));
  EXPECT_FALSE(course_.has_failed());
}

TEST_F(CourseTest, AFailureThatCameFirstIsNotTheTimesDoing) {
  start({"exit 3", "exec sleep 1000"});
  await_end(0);
  course_.on_timeout(5);
  EXPECT_EQ(finish(), 3);
  EXPECT_TRUE(course_.has_failed());
}

}  // namespace
}  // namespace lockstep::launcher
