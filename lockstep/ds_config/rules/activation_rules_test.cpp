// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string activations(const std::string& keys) {
  return R"("activation_checkpointing": {)" + keys + "}";
}

TEST(ActivationCheckpointingSection, IsReadWithAllItsKeys) {
  const Reading reading = reading_with(activations(
      R"("partition_activations": true, "cpu_checkpointing": true,
         "contiguous_memory_optimization": true, "number_checkpoints": 24,
         "synchronize_checkpoint_boundary": true, "profile": true)"));
  EXPECT_EQ(lines_of(reading.errors), "");
  const ActivationCheckpointingSection& section = reading.config.activation_checkpointing;
  EXPECT_TRUE(section.partition_activations.value);
  EXPECT_TRUE(section.cpu_checkpointing.value);
  EXPECT_TRUE(section.contiguous_memory_optimization.value);
  EXPECT_EQ(section.number_checkpoints.value, 24);
  EXPECT_TRUE(section.synchronize_checkpoint_boundary.value);
  EXPECT_TRUE(section.profile.value);
}

TEST(ActivationCheckpointingSection, ContiguousMemoryNeedsANumber) {
  EXPECT_THAT(
      errors_of(activations(R"("contiguous_memory_optimization": true)")),
      HasSubstr("contiguous_memory_optimization needs number_checkpoints"));
  EXPECT_THAT(
      errors_of(activations(R"("number_checkpoints": 0)")),
      HasSubstr("a whole number of at least 1"));
}

TEST(ActivationCheckpointingSection, AKeyWithoutEffectIsANote) {
  EXPECT_THAT(
      notes_of(activations(R"("partition_activations": true)")),
      HasSubstr("partition_activations has no effect"));
  EXPECT_THAT(
      notes_of(activations(R"("number_checkpoints": 4)")),
      HasSubstr("number_checkpoints is ignored without contiguous_memory_optimization"));
  EXPECT_THAT(
      notes_of(activations(R"("contiguous_memory_optimization": true, "number_checkpoints": 4)")),
      AllOf(HasSubstr("DeepSpeed refuses that"), Not(HasSubstr("has no effect"))));
  EXPECT_THAT(
      notes_of(activations(R"("cpu_checkpointing": true, "number_checkpoints": null)")),
      Not(HasSubstr("activation_checkpointing")));
}

}  // namespace
}  // namespace lockstep::ds_config
