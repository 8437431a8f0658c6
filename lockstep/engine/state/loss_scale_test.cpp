// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/state/loss_scale.h"

#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(DynamicLossScale, DoublesAfterAWindowOfCleanUpdatesAndHalvesAtOnceIfPlain) {
  DynamicLossScale scale({.init_scale = 256, .loss_scale_window = 2, .plain = true});
  // The window is counted from the last overflow, and the first update comes one after that.
  const std::vector<double> clean = {256, 256, 512, 512, 1024};
  std::vector<double> seen;
  for (int i = 0; i < 5; ++i) {
    seen.push_back(scale.update(false));
  }
  EXPECT_EQ(seen, clean);
  EXPECT_EQ(scale.update(true), 512);
  EXPECT_EQ(scale.update(true), 256);
  EXPECT_EQ(scale.update(false), 256);
  EXPECT_EQ(scale.update(false), 256);
  EXPECT_EQ(scale.update(false), 512);
}

TEST(DynamicLossScale, PlainStaysAtItsMinimum) {
  DynamicLossScale scale({.init_scale = 4, .min_loss_scale = 2, .plain = true});
  EXPECT_EQ(scale.update(true), 2);
  EXPECT_EQ(scale.update(true), 2);
}

TEST(DynamicLossScale, HysteresisLetsOverflowsPassAndTheMinimumEndsTheRun) {
  DynamicLossScale scale({.init_scale = 4, .hysteresis = 3, .min_loss_scale = 2});
  EXPECT_EQ(scale.update(true), 4);
  EXPECT_EQ(scale.update(true), 4);
  EXPECT_EQ(scale.update(true), 2);
  EXPECT_THROW(scale.update(true), Error);
}

TEST(DynamicLossScale, ConsecutiveHysteresisIsRefilledByEachCleanUpdate) {
  DynamicLossScale each({.init_scale = 8, .hysteresis = 2, .consecutive_hysteresis = true});
  DynamicLossScale rare({.init_scale = 8, .hysteresis = 2});
  for (DynamicLossScale* scale : {&each, &rare}) {
    scale->update(true);
    scale->update(false);
  }
  EXPECT_EQ(each.update(true), 8);
  EXPECT_EQ(rare.update(true), 4);
}

TEST(DynamicLossScale, ContinuesFromItsState) {
  DynamicLossScale one({.init_scale = 64, .loss_scale_window = 3});
  one.update(true);
  one.update(false);
  DynamicLossScale other({.init_scale = 64, .loss_scale_window = 3});
  other.load_state(one.state());
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(one.update(i == 4), other.update(i == 4));
  }
  EXPECT_THROW(other.load_state({{"scale", 3}}), ConfigError);
}

TEST(DynamicLossScale, RefusesNumbersWithoutSense) {
  EXPECT_THROW(DynamicLossScale({.loss_scale_window = 0}), ConfigError);
  EXPECT_THROW(DynamicLossScale({.hysteresis = 0}), ConfigError);
  EXPECT_THROW(DynamicLossScale({.min_loss_scale = 0}), ConfigError);
}

}  // namespace
}  // namespace lockstep
