// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/stall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/watch/test_views.h"

namespace lockstep::watch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kTimeout = 30 * kSecondNs;
constexpr int64_t kNow = 100 * kSecondNs;
constexpr int64_t kLongAgo = kNow - kTimeout;
constexpr int64_t kJustNow = kNow - kTimeout + 1;

TEST(Stall, IsBlamedOnRanksThatHaveNotReachedTheOperation) {
  const auto stall = find_stall(
      {view_of(0, {all_reduce(1, 5, Stage::kDone), all_reduce(2, kLongAgo, Stage::kRunning)}),
       view_of(1, {all_reduce(1, 5, Stage::kDone)}),
       view_of(2, {all_reduce(1, 5, Stage::kDone), all_reduce(2, kNow, Stage::kRunning)}),
       view_of(3, {})},
      kNow,
      kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(1, 3));
  EXPECT_EQ(
      stall->what,
      "ranks 1, 3 have not started all_reduce(sum) of float32[10], in which rank 0 has waited for "
      "30.0 s");
}

TEST(Stall, IsOfRank0ThatHasOnlyAskedAQuestionBefore) {
  Operation question = all_reduce(2, 10, Stage::kDone);
  question.name = short_text<20>("barrier");
  const auto stall = find_stall(
      {view_of(0, {all_reduce(1, 5, Stage::kDone), question}),
       view_of(1, {all_reduce(1, 5, Stage::kDone), all_reduce(2, kLongAgo, Stage::kRunning)})},
      kNow,
      kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(0));
}

TEST(Stall, IsNotReportedBeforeItsTimeout) {
  EXPECT_FALSE(find_stall(
      {view_of(0, {all_reduce(1, kJustNow, Stage::kRunning)}), view_of(1, {})}, kNow, kTimeout));
}

TEST(Stall, IsNotReportedWhileTheAwaitedRankSaves) {
  RankView saver = view_of(1, {});
  saver.record.saving = true;
  RankView waiting = view_of(0, {all_reduce(1, kLongAgo, Stage::kRunning)});
  waiting.record.saving = true;
  EXPECT_FALSE(find_stall({waiting, saver}, kNow, kTimeout));
  saver.idle_ns = kTimeout;  // Neither writes nor computes any more.
  const auto stall = find_stall({waiting, saver}, kNow, kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(1));
}

TEST(SaveProgresses, WhileARankWritesOrAllWaitForAnotherHost) {
  RankView writer = view_of(1, {});
  writer.record.saving = true;
  RankView waiting = view_of(0, {all_reduce(1, kLongAgo, Stage::kRunning)});
  waiting.record.saving = true;
  waiting.idle_ns = kTimeout;
  EXPECT_TRUE(save_progresses({waiting, writer}, kTimeout));
  EXPECT_TRUE(save_progresses({waiting}, kTimeout));
  writer.idle_ns = kTimeout;  // Its disk hangs.
  EXPECT_FALSE(save_progresses({waiting, writer}, kTimeout));
  EXPECT_FALSE(save_progresses({view_of(0, {}), view_of(1, {})}, kTimeout));
}

TEST(Stall, NamesAStoppedRankAlsoIfItHasReachedTheOperation) {
  RankView stopped = view_of(1, {all_reduce(1, kLongAgo, Stage::kRunning)});
  stopped.process.state = 'T';
  const auto stall =
      find_stall({view_of(0, {all_reduce(1, kLongAgo, Stage::kRunning)}), stopped}, kNow, kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(1));
  EXPECT_THAT(stall->what, HasSubstr("rank 1 is stopped"));
}

TEST(Stall, IsBetweenTheRanksIfAllAreInTheOperation) {
  const auto stall = find_stall(
      {view_of(0, {all_reduce(1, kLongAgo, Stage::kRunning)}),
       view_of(1, {all_reduce(1, kLongAgo + 1, Stage::kRunning)})},
      kNow,
      kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(0, 1));
  EXPECT_THAT(stall->what, HasSubstr("no data is transferred; check the network between them"));
}

TEST(Stall, OfAGroupIgnoresOtherRanks) {
  Operation before = all_reduce(1, 1, Stage::kDone);
  Operation waiting = all_reduce(2, kLongAgo, Stage::kRunning);
  before.group = waiting.group = 77;
  const auto stall = find_stall(
      {view_of(0, {before, waiting}), view_of(1, {before}), view_of(2, {})}, kNow, kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(1));
}

TEST(Stall, OfAMessageIsBlamedOnItsOtherEnd) {
  Operation receive = all_reduce(1, kLongAgo, Stage::kRunning);
  receive.name = short_text<20>("recv");
  receive.reduce = {};
  receive.sequence = -1;
  receive.peer = 2;
  const auto stall =
      find_stall({view_of(0, {receive}), view_of(1, {}), view_of(2, {})}, kNow, kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(2));
}

TEST(Stall, IsNotAComputingRankWithoutAWaitingRank) {
  RankView computing = view_of(0, {all_reduce(1, 5, Stage::kDone)});
  computing.idle_ns = 0;
  RankView idle = view_of(1, {all_reduce(1, 5, Stage::kDone)});
  idle.idle_ns = 10 * kTimeout;
  EXPECT_FALSE(find_stall({computing, idle}, kNow, kTimeout));
  computing.idle_ns = kTimeout;
  const auto stall = find_stall({computing, idle}, kNow, kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(0, 1));
  EXPECT_THAT(stall->what, HasSubstr("been idle for 30.0 s"));
}

TEST(Stall, NamesAStoppedRankBeforeAnotherWaits) {
  RankView stopped = view_of(0, {});
  stopped.process.state = 'T';
  stopped.stopped_ns = kTimeout - 1;
  EXPECT_FALSE(find_stall({stopped, view_of(1, {})}, kNow, kTimeout));
  stopped.stopped_ns = kTimeout;
  const auto stall = find_stall({stopped, view_of(1, {})}, kNow, kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(0));
}

TEST(Stall, NamesARankThatIsStoppedWhileItExitsOrThatNeverJoined) {
  RankView exiting = view_of(0, {all_reduce(1, 5, Stage::kDone)});
  exiting.record.left = true;
  RankView never_joined;
  never_joined.rank = 1;
  for (RankView* view : {&exiting, &never_joined}) {
    view->process.state = 'T';
    view->stopped_ns = kTimeout;
  }
  const auto stall = find_stall({exiting, never_joined}, kNow, kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->ranks, ElementsAre(0, 1));
  EXPECT_EQ(
      stall->what,
      "ranks 0, 1 have been stopped (SIGSTOP or SIGTSTP) for 30.0 s; send SIGCONT to continue "
      "them");
  never_joined.running = false;
  EXPECT_THAT(find_stall({exiting, never_joined}, kNow, kTimeout).value().ranks, ElementsAre(0));
}

TEST(Stall, IsNotARankInADebuggerWithoutAWaitingRank) {
  RankView debugged = view_of(0, {});
  debugged.process.state = 't';
  debugged.idle_ns = 10 * kTimeout;
  EXPECT_FALSE(find_stall({debugged}, kNow, kTimeout));
}

TEST(Stall, CountsNoWaitBeforeTheEndOfAPause) {
  const std::vector<RankView> ranks = {
      view_of(0, {all_reduce(1, kLongAgo, Stage::kRunning)}), view_of(1, {})};
  EXPECT_FALSE(find_stall(ranks, kNow, kTimeout, kJustNow));
  EXPECT_TRUE(find_stall(ranks, kNow, kTimeout, kLongAgo));
}

/// Returns two ranks, of which rank 0 waits in connect().
std::vector<RankView> joining() {
  std::vector<RankView> ranks = {view_of(0, {}), RankView{}};
  ranks[0].record.world = 2;
  ranks[1].rank = 1;
  return ranks;
}

TEST(AbsentRank, IsOneThatEndedWith0BeforeItJoined) {
  std::vector<RankView> ranks = joining();
  EXPECT_FALSE(find_ended_before_join(ranks, 2)) << "it may still come";
  ranks[1].running = false;
  ranks[1].exit_code = 3;
  EXPECT_FALSE(find_ended_before_join(ranks, 2)) << "a failure of its own";
  ranks[1].exit_code = 0;
  const auto absent = find_ended_before_join(ranks, 2);
  ASSERT_TRUE(absent);
  EXPECT_EQ(absent->rank, 1);
  EXPECT_THAT(absent->what, HasSubstr("ended before it joined the job, and rank 0 waits for it"));
  EXPECT_FALSE(find_ended_before_join(ranks, 4)) << "rank 0 is in another world";
  ranks[0].record.issued = 1;
  EXPECT_FALSE(find_ended_before_join(ranks, 2)) << "rank 1 must have been there, unseen";
  ranks[0] = RankView{};
  EXPECT_FALSE(find_ended_before_join(ranks, 2)) << "nobody waits";
}

TEST(AbsentRank, IsOneThatWasStoppedBeforeItJoined) {
  std::vector<RankView> ranks = joining();
  ranks[0].running = false;  // Its wait has timed out.
  EXPECT_FALSE(find_stopped_before_join(ranks, 2, 0));
  ranks[1].process.state = 'T';
  const auto absent = find_stopped_before_join(ranks, 2, 0);
  ASSERT_TRUE(absent);
  EXPECT_EQ(absent->rank, 1);
  ranks[0].record.issued = 1;
  EXPECT_FALSE(find_stopped_before_join(ranks, 2, 0));
}

TEST(Stall, IgnoresRanksThatHaveLeftOrNeverJoined) {
  RankView left = view_of(0, {});
  left.record.left = true;
  left.idle_ns = 10 * kTimeout;
  RankView unknown;
  unknown.rank = 1;
  unknown.idle_ns = 10 * kTimeout;
  EXPECT_FALSE(find_stall({left, unknown}, kNow, kTimeout));
}

}  // namespace
}  // namespace lockstep::watch
