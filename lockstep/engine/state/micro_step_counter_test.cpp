// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/state/micro_step_counter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ds_config::DsConfig batch_config(int64_t micro_batch, int64_t micro_steps) {
  ds_config::DsConfig config;
  config.batch.train_micro_batch_size_per_gpu.value = micro_batch;
  config.batch.gradient_accumulation_steps.value = micro_steps;
  return config;
}

TEST(MicroStepCounter, EndsAnUpdateAfterTheConfiguredMicroSteps) {
  MicroStepCounter counter(batch_config(4, 3), 2);
  EXPECT_EQ(counter.train_batch_size(), 24);
  for (const bool boundary : {false, false, true, false}) {
    EXPECT_EQ(counter.is_boundary(), boundary);
    counter.end_micro_step();
  }
  counter.end_update(/*was_applied=*/true);
  counter.end_update(/*was_applied=*/false);
  EXPECT_EQ(counter.counts().micro_steps, 4);
  EXPECT_EQ(counter.counts().global_steps, 2);
  EXPECT_EQ(counter.counts().global_samples, 48);
  EXPECT_EQ(counter.counts().skipped_steps, 1);
}

TEST(MicroStepCounter, TheProgramsBoundaryReplacesTheCount) {
  MicroStepCounter counter(batch_config(4, 1), 1);
  EXPECT_TRUE(counter.is_boundary());
  counter.set_boundary(false);
  counter.end_micro_step();
  EXPECT_FALSE(counter.is_boundary());
}

TEST(MicroStepCounter, WithoutManagedAccumulationEveryMicroStepIsABoundary) {
  ds_config::DsConfig config = batch_config(4, 3);
  config.managed_gradient_accumulation.value = false;
  MicroStepCounter counter(config, 2);
  EXPECT_TRUE(counter.is_boundary());
  for (const int64_t passes : {1, 3}) {
    const int64_t before = counter.counts().global_samples;
    for (int64_t pass = 0; pass < passes; ++pass) {
      counter.end_backward();
    }
    counter.end_update(/*was_applied=*/true);
    EXPECT_EQ(counter.counts().global_samples - before, passes * 2 * counter.micro_batch_size());
  }
}

TEST(MicroStepCounter, ABatchSizeSetsTheMicroStepsOrIsRefused) {
  MicroStepCounter counter(batch_config(4, 1), 2);
  counter.set_train_batch_size(40);
  EXPECT_EQ(counter.gradient_accumulation_steps(), 5);
  EXPECT_THAT(
      [&] { counter.set_train_batch_size(20); },
      ThrowsMessage<ConfigError>(HasSubstr("expected a multiple of 8 samples (2 ranks of 4)")));
  EXPECT_THROW(counter.set_micro_batch_size(0), ConfigError);
  EXPECT_EQ(counter.train_batch_size(), 40);
}

}  // namespace
}  // namespace lockstep
