// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/job.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

TEST(RestartDelay, DoublesUpToHalfAMinute) {
  EXPECT_EQ(restart_delay_seconds(1, 1), 1);
  EXPECT_EQ(restart_delay_seconds(1, 2), 2);
  EXPECT_EQ(restart_delay_seconds(1, 5), 16);
  EXPECT_EQ(restart_delay_seconds(1, 6), 30);
  EXPECT_EQ(restart_delay_seconds(1, 1000000), 30);
  EXPECT_EQ(restart_delay_seconds(0, 5), 0);
}

TEST(RestartDelay, IsNeverShorterThanRequested) {
  EXPECT_EQ(restart_delay_seconds(60, 1), 60);
  EXPECT_EQ(restart_delay_seconds(60, 9), 60);
}

}  // namespace
}  // namespace lockstep::launcher
