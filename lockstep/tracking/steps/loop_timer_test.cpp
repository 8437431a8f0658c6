// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/steps/loop_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::tracking {
namespace {

int64_t of(const PartTimes& times, LoopPart part) {
  return times.at(static_cast<size_t>(part));
}

TEST(LoopTimer, AMomentBelongsToTheInnermostPartOnly) {
  LoopTimer timer(LoopPart::kForward, 100);
  timer.enter(LoopPart::kBackward, 110);
  timer.enter(LoopPart::kCommunication, 130);
  timer.leave(135);
  timer.leave(140);
  const PartTimes taken = timer.take(141);
  EXPECT_EQ(of(taken, LoopPart::kForward), 10 + 1);
  EXPECT_EQ(of(taken, LoopPart::kBackward), 20 + 5);
  EXPECT_EQ(of(taken, LoopPart::kCommunication), 5);
  EXPECT_EQ(total_ns(taken), 41);
}

TEST(LoopTimer, RestartsAtZeroAfterTake) {
  LoopTimer timer(LoopPart::kOther, 0);
  timer.enter(LoopPart::kData, 3);
  EXPECT_EQ(total_ns(timer.take(10)), 10);
  const PartTimes next = timer.take(12);
  EXPECT_EQ(of(next, LoopPart::kData), 2);
  EXPECT_EQ(total_ns(next), 2);
}

TEST(LoopTimer, ALeaveTooManyKeepsTheBase) {
  LoopTimer timer(LoopPart::kForward, 0);
  timer.leave(4);
  timer.set_base(LoopPart::kOther, 5);
  const PartTimes taken = timer.take(7);
  EXPECT_EQ(of(taken, LoopPart::kForward), 5);
  EXPECT_EQ(of(taken, LoopPart::kOther), 2);
}

TEST(LoopTimer, CountsTheTimeOfAnEvaluationAsOtherAndKeepsEarlierTimes) {
  LoopTimer timer(LoopPart::kForward, 0);
  timer.enter(LoopPart::kData, 4);
  timer.leave(6);
  const PartTimes before = timer.read(6);
  timer.enter(LoopPart::kData, 7);
  timer.leave(9);
  timer.count_as_other_since(before, 16);
  const PartTimes taken = timer.take(16);
  EXPECT_EQ(of(taken, LoopPart::kForward), 4);
  EXPECT_EQ(of(taken, LoopPart::kData), 2);
  EXPECT_EQ(of(taken, LoopPart::kOther), 10);
}

}  // namespace
}  // namespace lockstep::tracking
