// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/launch_harness.h"

namespace lockstep::e2e {
namespace {

const std::string kFixture = LOOP_FIXTURE;

void expect_holds(const std::string& check, const std::vector<std::string>& variables = {}) {
  const Outcome outcome = run_lockstep(launch("2", {kFixture, check}), variables);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Loop, passes_begin_with_rank_0s_random_state_if_asked) {
  expect_holds("random_states");
}

TEST(Loop, reads_accelerates_variables_and_prefers_ours) {
  expect_holds(
      "environment",
      {"ACCELERATE_MIXED_PRECISION=fp16",
       "LOCKSTEP_MIXED_PRECISION=bf16",
       "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=3",
       "ACCELERATE_DEBUG_MODE=1"});
}

TEST(Loop, local_sgd_with_fp16_dropout_and_accumulation_ends_with_equal_weights) {
  expect_holds("local_sgd");
}

TEST(Loop, augmentation_depends_on_seed_epoch_and_sample_only) {
  const TestFolder folder;
  expect_holds("augmentation", {"LOOP_FIXTURE_FOLDER=" + folder.path().string()});
}

}  // namespace
}  // namespace lockstep::e2e
