// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using testing::Contains;
using testing::Each;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

const JobLayout kLayout = {
    .ranks = 3, .omp_num_threads = "4", .master_port = 1234, .run_id = "abc"};

TEST(RankEnvironment, SpeaksTorchrun) {
  EXPECT_THAT(
      rank_environment({}, kLayout, 2),
      testing::UnorderedElementsAre(
          "RANK=2",
          "WORLD_SIZE=3",
          "LOCAL_RANK=2",
          "LOCAL_WORLD_SIZE=3",
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=1234",
          "GROUP_RANK=0",
          "GROUP_WORLD_SIZE=1",
          "ROLE_RANK=2",
          "ROLE_WORLD_SIZE=3",
          "ROLE_NAME=default",
          "TORCHELASTIC_RESTART_COUNT=0",
          "TORCHELASTIC_MAX_RESTARTS=0",
          "TORCHELASTIC_RUN_ID=abc",
          "OMP_NUM_THREADS=4",
          "LOCKSTEP_LAUNCHER=1"));
}

TEST(RankEnvironment, KeepsTheRestAndReplacesWhatIsSet) {
  const auto environment =
      rank_environment({"HOME=/root", "RANK=7", "OMP_NUM_THREADS=9", "ODD"}, kLayout, 0);
  EXPECT_THAT(environment, IsSupersetOf({"HOME=/root", "RANK=0", "OMP_NUM_THREADS=4", "ODD"}));
  EXPECT_THAT(environment, Not(Contains("RANK=7")));
  EXPECT_THAT(environment, Not(Contains("OMP_NUM_THREADS=9")));
}

TEST(RankEnvironment, TakesOutWhatOtherLaunchersSaid) {
  const auto environment = rank_environment(
      {"OMPI_COMM_WORLD_RANK=1",
       "PMI_RANK=1",
       "PMIX_RANK=1",
       "MPI_LOCALRANKID=1",
       "MV2_COMM_WORLD_RANK=1",
       "SLURM_PROCID=1",
       "SLURM_LOCALID=1",
       "TORCHELASTIC_USE_AGENT_STORE=True"},
      kLayout,
      0);
  for (const char* name : {"OMPI_", "PMI", "MPI_", "MV2_", "SLURM_", "TORCHELASTIC_USE"}) {
    EXPECT_THAT(environment, Each(Not(StartsWith(name))));
  }
  EXPECT_THAT(rank_environment({"SLURM_JOB_ID=5"}, kLayout, 0), Contains("SLURM_JOB_ID=5"));
}

TEST(RankEnvironment, OnlyRankZeroDrawsOnTheTerminal) {
  JobLayout layout = kLayout;
  layout.terminal_columns = 100;
  EXPECT_THAT(rank_environment({}, layout, 0), Contains("LOCKSTEP_TERMINAL=100"));
  EXPECT_THAT(
      rank_environment({"LOCKSTEP_TERMINAL=80"}, layout, 1),
      Each(Not(StartsWith("LOCKSTEP_TERMINAL"))));
}

TEST(RankEnvironment, SaysToResumeOnlyWhereThatWasAsked) {
  JobLayout layout = kLayout;
  EXPECT_THAT(rank_environment({}, layout, 1), Each(Not(StartsWith("LOCKSTEP_RESUME"))));
  layout.resume = true;
  EXPECT_THAT(
      rank_environment({"LOCKSTEP_RESUME=0"}, layout, 1), Contains("LOCKSTEP_RESUME=1").Times(1));
}

TEST(RankEnvironment, APythonScriptIsUnbufferedUnlessTheUserDecided) {
  JobLayout layout = kLayout;
  layout.is_python = true;
  EXPECT_THAT(rank_environment({}, layout, 0), Contains("PYTHONUNBUFFERED=1"));
  EXPECT_THAT(
      rank_environment({"PYTHONUNBUFFERED="}, layout, 0), Not(Contains("PYTHONUNBUFFERED=1")));
}

TEST(RunId, IsDifferentEachTime) {
  EXPECT_EQ(random_run_id().size(), 16U);
  EXPECT_NE(random_run_id(), random_run_id());
}

}  // namespace
}  // namespace lockstep::launcher
