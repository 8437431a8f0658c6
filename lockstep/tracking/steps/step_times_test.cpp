// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/steps/step_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::tracking {
namespace {

int64_t of(const PartTimes& times, StepPart part) {
  return times.at(static_cast<size_t>(part));
}

TEST(StepTimes, AMomentBelongsToTheInnermostPartOnly) {
  StepTimes times(StepPart::kForward, 100);
  times.enter(StepPart::kBackward, 110);
  times.enter(StepPart::kCommunication, 130);
  times.leave(135);
  times.leave(140);
  const PartTimes taken = times.take(141);
  EXPECT_EQ(of(taken, StepPart::kForward), 10 + 1);
  EXPECT_EQ(of(taken, StepPart::kBackward), 20 + 5);
  EXPECT_EQ(of(taken, StepPart::kCommunication), 5);
  EXPECT_EQ(total_ns(taken), 41);
}

TEST(StepTimes, RestartAtZeroAfterTheyAreTaken) {
  StepTimes times(StepPart::kOther, 0);
  times.enter(StepPart::kData, 3);
  EXPECT_EQ(total_ns(times.take(10)), 10);
  const PartTimes next = times.take(12);
  EXPECT_EQ(of(next, StepPart::kData), 2);
  EXPECT_EQ(total_ns(next), 2);
}

TEST(StepTimes, ALeaveTooManyKeepsTheBase) {
  StepTimes times(StepPart::kForward, 0);
  times.leave(4);
  times.set_base(StepPart::kOther, 5);
  const PartTimes taken = times.take(7);
  EXPECT_EQ(of(taken, StepPart::kForward), 5);
  EXPECT_EQ(of(taken, StepPart::kOther), 2);
}

TEST(StepTimes, OfAnEvaluationBecomeOtherAndKeepEarlierOnes) {
  StepTimes times(StepPart::kForward, 0);
  times.enter(StepPart::kData, 4);
  times.leave(6);
  const PartTimes before = times.read(6);
  times.enter(StepPart::kData, 7);
  times.leave(9);
  times.count_as_other_since(before, 16);
  const PartTimes taken = times.take(16);
  EXPECT_EQ(of(taken, StepPart::kForward), 4);
  EXPECT_EQ(of(taken, StepPart::kData), 2);
  EXPECT_EQ(of(taken, StepPart::kOther), 10);
}

}  // namespace
}  // namespace lockstep::tracking
