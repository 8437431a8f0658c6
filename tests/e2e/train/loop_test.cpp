// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

const std::string kFixture = LOOP_FIXTURE;

void expect_holds(const std::string& check, const std::vector<std::string>& variables = {}) {
  const Outcome outcome = run_lockstep(launch("2", {kFixture, check}), variables);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Loop, PassesBeginWithRank0sRandomStateIfAsked) {
  expect_holds("random_states");
}

TEST(Loop, ReadsAcceleratesVariablesAndPrefersOurs) {
  expect_holds(
      "environment",
      {"ACCELERATE_MIXED_PRECISION=fp16",
       "LOCKSTEP_MIXED_PRECISION=bf16",
       "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=3",
       "ACCELERATE_DEBUG_MODE=1"});
}

TEST(Loop, LocalSgdWithFp16DropoutAndAccumulationEndsWithEqualWeights) {
  expect_holds("local_sgd");
}

void expect_refused(const std::string& check, const std::vector<std::string>& words) {
  for (const std::string ranks : {"2", "3"}) {
    const Outcome outcome = run_lockstep(launch(ranks, {kFixture, check}));
    EXPECT_NE(outcome.code, 0) << outcome.err;
    for (const std::string& word : words) {
      EXPECT_THAT(outcome.err, ::testing::HasSubstr(word));
    }
  }
}

TEST(LoopMistakes, TheOptimizerThatWasPassedToPrepare) {
  expect_refused("steps_the_original", {"use the optimizer that prepare returned"});
  expect_refused(
      "steps_torchs_original",
      {"was changed after micro-step 1 of 2",
       "call step() of the optimizer that prepare returned"});
}

TEST(LoopMistakes, AnOptimizerOrAModelThatWasNotPrepared) {
  expect_refused("optimizer_not_prepared", {"pass the parameter's optimizer to prepare"});
  expect_refused(
      "model_not_prepared",
      {"2 parameters belong to no prepared model", "pass their model to prepare"});
}

TEST(LoopMistakes, APlainBackwardWithinAccumulate) {
  expect_refused("plain_backward", {"expected accelerator.backward(loss)"});
}

TEST(LoopMistakes, AnOptimizerOfAnotherModel) {
  expect_refused(
      "another_models_optimizer", {"none of this optimizer's 2 parameters has a gradient"});
}

TEST(LoopMistakes, ASeedOnOneProcessAlone) {
  expect_refused("seed_of_one_process", {"rank 0 has 7, rank 1 has 0"});
}

TEST(LoopMistakes, ADivergingTrainingIsReportedAtOnceAndAtTheEnd) {
  const Outcome outcome = run_lockstep(launch("2", {kFixture, "diverges"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("NonFinitePolicy::kStop"));
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("ends with a loss that is NaN or infinite"));
}

TEST(Loop, AugmentationDependsOnSeedEpochAndSampleOnly) {
  const TestFolder folder;
  expect_holds("augmentation", {"LOOP_FIXTURE_FOLDER=" + folder.path().string()});
}

TEST(Loop, RanksAgreeOnABatchSizeWhenOneIsOutOfMemory) {
  for (const std::string comm : {"shm", "gloo"}) {
    for (const std::string stage : {"0", "1", "2", "3"}) {
      SCOPED_TRACE(comm + ", stage " + stage);
      expect_holds(
          "executable_batch_size", {"LOCKSTEP_COMM=" + comm, "LOCKSTEP_ZERO_STAGE=" + stage});
    }
  }
}

TEST(Loop, AnAttemptThatFailsForAnotherReasonEndsTheJob) {
  const Outcome outcome = run_lockstep(launch("2", {kFixture, "broken_attempt"}));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, testing::HasSubstr("a mistake of the program's"));
  EXPECT_THAT(outcome.err, testing::HasSubstr("rank 1"));
}

}  // namespace
}  // namespace lockstep::e2e
