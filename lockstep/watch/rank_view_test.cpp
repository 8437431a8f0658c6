// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/rank_view.h"

#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/watch/test_views.h"

namespace lockstep::watch {
namespace {

TEST(ProcessState, ReportsWhetherAProcessOfAnyNameIsStopped) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NAME, ") R 1 2 (x");
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto state = process_state(child);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->state, 'T');
  EXPECT_GE(state->cpu_ms, 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  EXPECT_FALSE(process_state(child));
}

TEST(ProcessState, CountsTheProcessorsTime) {
  const auto before = process_state(::getpid());
  ASSERT_TRUE(before);
  auto now = before;
  while (now->cpu_ms < before->cpu_ms + 20) {
    now = process_state(::getpid());
  }
  EXPECT_EQ(now->state, 'R');
}

TEST(RankView, IsDescribedByStepAndOperation) {
  RankView view = view_of(1, {all_reduce(8, 1, Stage::kDone), all_reduce(9, 2, Stage::kRunning)});
  view.record.step = 20;
  EXPECT_EQ(
      describe(view, 2 + 30 * kSecondNs),
      "step 20, in all_reduce(sum) of float32[10] (operation 9) for 30.0 s");
  view.record.operations.pop_back();
  EXPECT_EQ(
      describe(view, 2 + 30 * kSecondNs),
      "step 20, in no operation; the last was all_reduce(sum) of float32[10] (operation 8), 30.0 s "
      "ago");
  view.process.state = 'T';
  EXPECT_THAT(describe(view, 0), testing::HasSubstr("step 20, stopped by a signal"));
  view.record.pid = 0;
  EXPECT_EQ(describe(view, 0), "has not joined the job, stopped by a signal or a debugger");
  view.process.state = 'S';
  EXPECT_EQ(describe(view, 0), "has not joined the job");
}

}  // namespace
}  // namespace lockstep::watch
