// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/parallelism_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> replaced(std::vector<std::string> words) {
  replace_parallelism_options(words);
  return words;
}

TEST(ParallelismWords, SizesAndDegreesBecomeAMesh) {
  EXPECT_THAT(
      replaced(
          {"launch",
           "--use-parallelism-config",
           "--parallelism-config-tp-size=2",
           "--parallelism-config-cp-size=1",
           "--parallelism-config-dp-replicate-size=2",
           "--parallelism-config-cp-backend=torch",
           "train.py"}),
      ElementsAre("launch", "train.py", "--mesh=tp=2,dp_replicate=2"));
  EXPECT_THAT(
      replaced(
          {"launch",
           "--megatron-lm-tp-degree=2",
           "--megatron-lm-pp-degree=2",
           "--megatron-lm-use-distributed-optimizer=true",
           "--megatron-lm-recompute-activations=false"}),
      ElementsAre("launch", "--mesh=tp=2,pp=2", "--zero-stage=1"));
  EXPECT_THAT(replaced({"launch", "--mesh=tp=2"}), ElementsAre("launch", "--mesh=tp=2"));
}

TEST(ParallelismWords, WhatTheLauncherCannotDoIsRefusedByName) {
  EXPECT_THAT(
      [] {
        replaced({"launch", "--megatron-lm-gradient-clipping=1.0"});
      },
      ThrowsMessage<ConfigError>(
          HasSubstr("--megatron-lm-gradient-clipping=1.0 is not supported: the program clips")));
  EXPECT_THAT(
      [] {
        replaced({"launch", "--parallelism-config-sp-seq-length=256"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("DeepSpeedSequenceParallelConfig")));
  EXPECT_THAT(
      [] {
        replaced({"launch", "--mesh=tp=2", "--megatron-lm-pp-degree=2"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("add the sizes to --mesh")));
}

}  // namespace
}  // namespace lockstep::cli
