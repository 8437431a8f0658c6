// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/job_state_machine.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using testing::HasSubstr;

/// A state machine over real processes, each a shell with its own script. The test runs the
/// launcher's loop.
class JobStateMachineTest : public testing::Test {
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
  /// Waits until `rank` has printed its first line: its traps are set.
  void await_line(int rank) {
    LineForwarder& out = ranks_.all()[static_cast<size_t>(rank)].out;
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
    state_machine_.on_exits();
  }
  /// Runs the launcher's loop. `impatient`: a deadline counts as reached once no other event occurs
  /// for a while.
  int finish(bool impatient = false) {
    while (!state_machine_.is_over()) {
      std::vector<pollfd> items;
      ranks_.await(items);
      constexpr int kTickMs = 20;
      const bool nothing = ::poll(items.data(), items.size(), kTickMs) == 0;
      ranks_.pump(items);
      state_machine_.on_exits();
      const auto deadline = state_machine_.deadline();
      if (nothing && deadline && (impatient || Clock::now() >= *deadline)) {
        state_machine_.on_deadline();
      }
    }
    ranks_.close();
    state_machine_.report_end();
    return state_machine_.exit_code();
  }

  UniqueFd null_{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  Sink screen_{null_.get()};
  std::vector<Program> programs_;
  RankSet ranks_{screen_, screen_, false};
  std::string said_;
  bool is_saving_ = false;
  std::set<size_t> lost_peer_;
  JobStateMachine state_machine_{
      ranks_,
      30,
      [this](const std::string& text) { said_ += text + "\n"; },
      [this](size_t local_rank) { return lost_peer_.count(local_rank) != 0; },
      [this] { return is_saving_; }};
};

TEST_F(JobStateMachineTest, EndsWithZeroWhenAllDo) {
  start({"exit 0", "exit 0"});
  EXPECT_EQ(finish(), 0);
  EXPECT_EQ(state_machine_.cause(), std::nullopt);
  EXPECT_EQ(said_, "");
}

TEST_F(JobStateMachineTest, ARankThatExitsWithZeroStopsNoOther) {
  start({"exit 0", "read line < /dev/null; exit 4"});
  EXPECT_EQ(finish(), 4);
  EXPECT_EQ(state_machine_.cause()->rank, 1);
  EXPECT_EQ(state_machine_.stopped(), 0);
}

TEST_F(JobStateMachineTest, TheRankThatOthersLostIsTheCauseIfItEndsLater) {
  lost_peer_ = {0};
  start({"exit 1", "sleep 0.5; exit 3", "exec sleep 1000"});
  EXPECT_EQ(finish(), 3);
  EXPECT_EQ(state_machine_.cause()->rank, 1);
  EXPECT_EQ(state_machine_.also_failed().at(0).rank, 0);
  EXPECT_EQ(state_machine_.stopped(), 1);
}

TEST_F(JobStateMachineTest, AStalledRankDoesNotCountAsStoppedByTheLauncher) {
  start({"exec sleep 1000", "exec sleep 1000"});
  state_machine_.on_stall(
      {.rank = 1, .exit_status = {}, .diagnostic = "stands still", .stalled = true});
  finish();
  EXPECT_EQ(state_machine_.stopped(), 1);
}

TEST_F(JobStateMachineTest, AStoppedRankIsTheCauseOfAWaitingRanksFailure) {
  start({"exit 1", "exec sleep 1000"});
  await_end(0);
  state_machine_.add_stall(
      {.rank = 1, .exit_status = {}, .diagnostic = "was stopped", .stalled = true});
  EXPECT_EQ(finish(), 124);
  EXPECT_EQ(state_machine_.cause()->rank, 1);
  EXPECT_EQ(state_machine_.also_failed().at(0).rank, 0);
  EXPECT_EQ(state_machine_.stopped(), 0);
}

TEST_F(JobStateMachineTest, ARankThatEndedWith0WhileOthersWaitForItIsAFailure) {
  start({"exit 0", "exec sleep 1000"});
  await_end(0);
  state_machine_.on_stall({.rank = 0, .exit_status = {}, .diagnostic = "it never joined"});
  EXPECT_EQ(finish(), 1);
  EXPECT_THAT(
      state_machine_.cause()->sentence(2), HasSubstr("rank 0 of 2 ended with exit code 0 after "));
  EXPECT_EQ(state_machine_.stopped(), 1);
}

TEST_F(JobStateMachineTest, APauseDoesNotCountAsTimeToFinish) {
  start({"exit 75", "exec sleep 1000"});
  await_end(0);
  const auto before = state_machine_.deadline();
  state_machine_.postpone_deadline(std::chrono::seconds(100));
  EXPECT_EQ(state_machine_.deadline(), *before + std::chrono::seconds(100));
  finish(true);
}

TEST_F(JobStateMachineTest, ARankThatSavesIsWaitedFor) {
  start({"trap '' TERM; echo ready; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1; done; exit 75"});
  await_line(0);
  is_saving_ = true;
  state_machine_.on_signal(SIGTERM);
  state_machine_.on_deadline();
  EXPECT_THAT(said_, HasSubstr("a rank is still saving a checkpoint; waiting for it"));
  state_machine_.on_deadline();
  is_saving_ = false;
  state_machine_.on_deadline();  // The grace period starts again.
  EXPECT_GT(*state_machine_.deadline(), in_seconds(25));
  EXPECT_EQ(finish(), 75);
  EXPECT_EQ(said_.find("killing"), std::string::npos);
}

TEST_F(JobStateMachineTest, ASavingRankIsNotAwaitedIfAnotherHostHasEnded) {
  start({"trap '' TERM; echo ready; while :; do sleep 0.1; done"});
  await_line(0);
  is_saving_ = true;
  state_machine_.on_signal(SIGTERM);
  state_machine_.on_end_elsewhere();
  state_machine_.on_deadline();
  EXPECT_EQ(finish(), 143);
}

TEST_F(JobStateMachineTest, AnEndOnAnotherHostLimitsTheGraceToTwoSeconds) {
  start({"trap '' TERM; echo ready; while :; do sleep 1; done"});
  await_line(0);
  state_machine_.on_signal(SIGTERM);
  EXPECT_GT(*state_machine_.deadline(), in_seconds(25));
  state_machine_.on_end_elsewhere();
  EXPECT_LE(*state_machine_.deadline(), in_seconds(2));
  EXPECT_EQ(finish(), 143);
}

TEST_F(JobStateMachineTest, TheFirstFailureStopsTheOthersAndIsTheCause) {
  start({"exec sleep 1000", "exit 3", "exec sleep 1000"});
  await_end(1);
  EXPECT_EQ(finish(), 3);
  EXPECT_EQ(state_machine_.cause()->rank, 1);
  EXPECT_EQ(state_machine_.stopped(), 2);
  EXPECT_TRUE(state_machine_.also_failed().empty());
}

TEST_F(JobStateMachineTest, AKilledRankIsTheCauseThoughItsPeerFailedFirst) {
  start({"exit 1", "read line; kill -9 $$", "exec sleep 1000"});
  await_end(0);
  ::kill(ranks_.all()[1].pid, SIGKILL);
  await_end(1);
  EXPECT_EQ(finish(), 137);
  EXPECT_EQ(state_machine_.cause()->rank, 1);
  ASSERT_EQ(state_machine_.also_failed().size(), 1U);
  EXPECT_EQ(state_machine_.also_failed()[0].rank, 0);
}

TEST_F(JobStateMachineTest, ARankThatWillNotStopIsKilled) {
  start({"trap '' TERM; echo ready; while :; do sleep 1000; done", "exit 3"});
  await_line(0);
  await_end(1);
  EXPECT_EQ(finish(), 3);
  EXPECT_EQ(ranks_.all()[0].exit_status->value, SIGKILL);
}

TEST_F(JobStateMachineTest, ASignalIsPassedOnAndIsNotAFailure) {
  start({"exec sleep 1000", "exec sleep 1000"});
  state_machine_.on_signal(SIGTERM);
  EXPECT_EQ(finish(), 128 + SIGTERM);
  EXPECT_EQ(state_machine_.cause(), std::nullopt);
  EXPECT_THAT(said_, HasSubstr("SIGTERM received and forwarded; the ranks have 30 s to finish"));
  EXPECT_THAT(said_, HasSubstr("the job ended after SIGTERM; exit code 143"));
}

TEST_F(JobStateMachineTest, RanksThatSaveAndExitOnASignalEndTheJobWith75) {
  start({"trap 'exit 75' TERM; echo ready; while :; do sleep 0.01; done"});
  await_line(0);
  state_machine_.on_signal(SIGTERM);
  EXPECT_EQ(finish(), 75);
}

TEST_F(JobStateMachineTest, RanksThatFinishOnASignalEndTheJobWithZero) {
  start({"trap 'exit 0' INT; echo ready; while :; do sleep 0.01; done"});
  await_line(0);
  state_machine_.on_signal(SIGINT);
  EXPECT_EQ(finish(), 0);
}

TEST_F(JobStateMachineTest, AWrappersChildKeepsItsTimeToFinish) {
  start({"(trap 'sleep 0.3; exit 0' TERM; echo ready; while :; do sleep 0.01; done) & wait"});
  await_line(0);
  state_machine_.on_signal(SIGTERM);
  await_end(0);
  EXPECT_FALSE(state_machine_.is_over()) << "the wrapper has ended, its program has not";
  EXPECT_EQ(finish(), 143);
}

TEST_F(JobStateMachineTest, ASecondSignalKillsAtOnce) {
  start({"trap '' TERM; echo ready; while :; do sleep 1000; done"});
  await_line(0);
  state_machine_.on_signal(SIGTERM);
  state_machine_.on_signal(SIGINT);
  EXPECT_EQ(state_machine_.deadline(), std::nullopt);
  EXPECT_EQ(finish(), 143);
  EXPECT_THAT(said_, HasSubstr("SIGINT received; killing the ranks now"));
  EXPECT_THAT(said_, HasSubstr("rank 0 was killed by SIGKILL"));
}

TEST_F(JobStateMachineTest, ASuspendedRankIsContinuedForTheSignal) {
  start({"trap 'exit 75' TERM; echo ready; while :; do sleep 0.01; done"});
  await_line(0);
  ranks_.send(SIGSTOP);
  state_machine_.on_signal(SIGTERM);
  EXPECT_EQ(finish(), 75);
}

TEST_F(JobStateMachineTest, AnEarlyWarningIsForwardedAndTheJobContinues) {
  start({"trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done"});
  await_line(0);
  state_machine_.on_signal(SIGUSR1);
  EXPECT_EQ(state_machine_.deadline(), std::nullopt);
  EXPECT_EQ(finish(), 75);
}

TEST_F(JobStateMachineTest, RanksThatDieOfAnEarlyWarningAreNotAFailure) {
  start({"exec sleep 1000", "trap '' USR1; echo ready; while :; do sleep 1000; done"});
  await_line(1);
  state_machine_.on_signal(SIGUSR1);
  EXPECT_EQ(finish(), 128 + SIGUSR1);
  EXPECT_EQ(state_machine_.cause(), std::nullopt);
}

TEST_F(JobStateMachineTest, ASignalThatReachedTheRanksFirstIsNotAFailure) {
  start({"kill -TERM $$", "exec sleep 1000"});
  await_end(0);
  state_machine_.on_signal(SIGTERM);
  EXPECT_EQ(finish(), 143);
  EXPECT_EQ(state_machine_.cause(), std::nullopt);
}

TEST_F(JobStateMachineTest, ARankThatStaysWhenTheOthersHaveSavedIsTheCause) {
  start({"exit 75", "exec sleep 1000"});
  await_end(0);
  EXPECT_NE(state_machine_.deadline(), std::nullopt);
  EXPECT_EQ(finish(true), 143);
  EXPECT_EQ(state_machine_.cause()->rank, 1);
  EXPECT_THAT(
      state_machine_.cause()->diagnostic,
      HasSubstr("did not end within 30 s after another rank had saved"));
}

TEST_F(JobStateMachineTest, TheJobEndsIfItsOutputIsClosed) {
  start({"exec sleep 1000"});
  state_machine_.on_output_lost(EPIPE);
  EXPECT_EQ(finish(), 128 + SIGPIPE);
  EXPECT_EQ(said_, "");
}

TEST_F(JobStateMachineTest, OutputThatCannotBeWrittenEndsTheJobWithAMessage) {
  start({"exec sleep 1000"});
  state_machine_.on_output_lost(ENOSPC);
  EXPECT_EQ(finish(), 1);
  EXPECT_THAT(said_, HasSubstr("No space left"));
}

TEST_F(JobStateMachineTest, AJobBeyondItsTimeLimitEndsWith124) {
  start({"trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", "exec sleep 1000"});
  await_line(0);
  state_machine_.on_timeout(5);
  EXPECT_EQ(finish(), 124);
  EXPECT_THAT(said_, HasSubstr("has run for 5 s, its time limit; SIGTERM sent"));
  EXPECT_THAT(said_, HasSubstr("the job ended after its time limit; exit code 124"));
  EXPECT_FALSE(state_machine_.has_failed());
}

TEST_F(JobStateMachineTest, AFailureBeforeTheTimeLimitKeepsItsExitCode) {
  start({"exit 3", "exec sleep 1000"});
  await_end(0);
  state_machine_.on_timeout(5);
  EXPECT_EQ(finish(), 3);
  EXPECT_TRUE(state_machine_.has_failed());
}

}  // namespace
}  // namespace lockstep::launcher
