// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/variable_name.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(VariableName, IsOfLettersDigitsAndUnderscores) {
  for (const char* name : {"A", "_", "NCCL_DEBUG", "a1"}) {
    EXPECT_TRUE(is_variable_name(name)) << name;
  }
  for (const char* name : {"", "1A", "a-b", "a b", "a=b", "größe"}) {
    EXPECT_FALSE(is_variable_name(name)) << name;
  }
}

TEST(VariableName, OfARankIsTheLaunchersAlone) {
  for (const char* name :
       {"RANK",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_ERROR_FILE",
        "OMPI_COMM_WORLD_RANK",
        "SLURM_PROCID",
        "LOCKSTEP_FLIGHT",
        "LOCKSTEP_LAUNCHER"}) {
    EXPECT_TRUE(is_set_by_launcher(name)) << name;
  }
  for (const char* name :
       {"HOME", "OMP_NUM_THREADS", "RANKS", "SLURM_JOB_ID", "LOCKSTEP_RESUME", "TORCH_HOME"}) {
    EXPECT_FALSE(is_set_by_launcher(name)) << name;
  }
}

TEST(VariableName, OfARankIsInheritedUnlessAnotherLauncherSetIt) {
  EXPECT_TRUE(is_launcher_variable("PMI_RANK"));
  EXPECT_TRUE(is_launcher_variable("LOCKSTEP_NODE_SPEC"));
  EXPECT_FALSE(is_launcher_variable("RANK"));
  EXPECT_FALSE(is_launcher_variable("TORCHELASTIC_ERROR_FILE"));
}

}  // namespace
}  // namespace lockstep
