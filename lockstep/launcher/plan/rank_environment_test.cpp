// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/text/variable_name.h"

namespace lockstep::launcher {
namespace {

using testing::Contains;
using testing::Each;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

HostEnvironment environment_of_three() {
  HostEnvironment common;
  common.world_size = 3;
  common.local_size = 3;
  common.omp_num_threads = "4";
  common.master_port = 1234;
  common.run_id = "abc";
  return common;
}

const HostEnvironment kThreeRanks = environment_of_three();

TEST(RankEnvironment, SetsTorchrunsVariables) {
  EXPECT_THAT(
      rank_environment({}, kThreeRanks, 2),
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

TEST(RankEnvironment, CountsTheRanksOfTheHostsBefore) {
  HostEnvironment common = kThreeRanks;
  common.world_size = 8;
  common.first_rank = 5;
  common.nodes = 3;
  common.node_rank = 2;
  common.master_addr = "node1";
  common.terminal_columns = 80;
  const auto environment = rank_environment({}, common, 0);
  EXPECT_THAT(
      environment,
      IsSupersetOf(
          {"RANK=5",
           "WORLD_SIZE=8",
           "LOCAL_RANK=0",
           "LOCAL_WORLD_SIZE=3",
           "GROUP_RANK=2",
           "GROUP_WORLD_SIZE=3",
           "ROLE_RANK=5",
           "ROLE_WORLD_SIZE=8",
           "MASTER_ADDR=node1"}));
  EXPECT_THAT(environment, Each(Not(StartsWith("LOCKSTEP_TERMINAL"))));
}

TEST(RankEnvironment, TellsARestartedRankItsAttemptAndToResume) {
  HostEnvironment common = kThreeRanks;
  common.restart_count = 2;
  common.max_restarts = 5;
  common.resume = true;
  EXPECT_THAT(
      rank_environment({}, common, 1),
      IsSupersetOf(
          {"TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_MAX_RESTARTS=5", "LOCKSTEP_RESUME=1"}));
}

TEST(RankEnvironment, TheUsersValueWinsAndAppearsOnce) {
  HostEnvironment common = kThreeRanks;
  common.resume = true;
  common.extra = {{"KEPT", "new"}, {"OMP_NUM_THREADS", "9"}, {"LOCKSTEP_RESUME", "0"}};
  const auto environment = rank_environment({"KEPT=old"}, common, 0);
  EXPECT_THAT(environment, IsSupersetOf({"KEPT=new", "OMP_NUM_THREADS=9", "LOCKSTEP_RESUME=0"}));
  for (const char* name : {"KEPT=", "OMP_NUM_THREADS=", "LOCKSTEP_RESUME="}) {
    EXPECT_THAT(environment, Contains(StartsWith(name)).Times(1));
  }
}

TEST(RankEnvironment, ListsTheVariablesThatTheLauncherSets) {
  HostEnvironment common = kThreeRanks;
  common.terminal_columns = 80;
  for (const config::EnvVariable& variable : rank_variables(common, 0)) {
    EXPECT_EQ(is_set_by_launcher(variable.name), variable.name != "OMP_NUM_THREADS")
        << variable.name;
  }
  for (const char* name : {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK"}) {
    EXPECT_TRUE(is_set_by_launcher(name)) << name;
  }
  for (const char* name : {"HOME", "OMP_NUM_THREADS", "RANKS", "LOCKSTEP_RESUME"}) {
    EXPECT_FALSE(is_set_by_launcher(name)) << name;
  }
}

TEST(RankEnvironment, KeepsTheRestAndReplacesSetVariables) {
  const auto environment =
      rank_environment({"HOME=/root", "RANK=7", "OMP_NUM_THREADS=9", "ODD"}, kThreeRanks, 0);
  EXPECT_THAT(environment, IsSupersetOf({"HOME=/root", "RANK=0", "OMP_NUM_THREADS=4", "ODD"}));
  EXPECT_THAT(environment, Not(Contains("RANK=7")));
  EXPECT_THAT(environment, Not(Contains("OMP_NUM_THREADS=9")));
}

TEST(RankEnvironment, RemovesVariablesOfOtherLaunchers) {
  const auto environment = rank_environment(
      {"OMPI_COMM_WORLD_RANK=1",
       "PMI_RANK=1",
       "PMIX_RANK=1",
       "MPI_LOCALRANKID=1",
       "MV2_COMM_WORLD_RANK=1",
       "SLURM_PROCID=1",
       "SLURM_LOCALID=1",
       "TORCHELASTIC_USE_AGENT_STORE=True"},
      kThreeRanks,
      0);
  for (const char* name : {"OMPI_", "PMI", "MPI_", "MV2_", "SLURM_", "TORCHELASTIC_USE"}) {
    EXPECT_THAT(environment, Each(Not(StartsWith(name))));
  }
  EXPECT_THAT(rank_environment({"SLURM_JOB_ID=5"}, kThreeRanks, 0), Contains("SLURM_JOB_ID=5"));
}

TEST(RankEnvironment, OnlyRankZeroDrawsOnTheTerminal) {
  HostEnvironment common = kThreeRanks;
  common.terminal_columns = 100;
  EXPECT_THAT(rank_environment({}, common, 0), Contains("LOCKSTEP_TERMINAL=100"));
  EXPECT_THAT(
      rank_environment({"LOCKSTEP_TERMINAL=80"}, common, 1),
      Each(Not(StartsWith("LOCKSTEP_TERMINAL"))));
}

TEST(RankEnvironment, SaysToResumeOnlyWhereThatWasAsked) {
  HostEnvironment common = kThreeRanks;
  EXPECT_THAT(rank_environment({}, common, 1), Each(Not(StartsWith("LOCKSTEP_RESUME"))));
  common.resume = true;
  EXPECT_THAT(
      rank_environment({"LOCKSTEP_RESUME=0"}, common, 1), Contains("LOCKSTEP_RESUME=1").Times(1));
}

TEST(RankEnvironment, APythonScriptIsUnbufferedUnlessTheUserDecided) {
  HostEnvironment common = kThreeRanks;
  common.is_python = true;
  EXPECT_THAT(rank_environment({}, common, 0), Contains("PYTHONUNBUFFERED=1"));
  EXPECT_THAT(
      rank_environment({"PYTHONUNBUFFERED="}, common, 0), Not(Contains("PYTHONUNBUFFERED=1")));
}

TEST(RunId, IsDifferentEachTime) {
  EXPECT_EQ(random_run_id().size(), 16U);
  EXPECT_NE(random_run_id(), random_run_id());
}

}  // namespace
}  // namespace lockstep::launcher
