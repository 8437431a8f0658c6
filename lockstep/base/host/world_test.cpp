// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/world.h"

#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Variables = std::map<std::string, std::string>;

WorldSpec world_of(const Variables& variables) {
  return world_from_environment(Environment::of(variables));
}

/// `base` with `changes`; a change to "" unsets.
Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    base[name] = value;
  }
  return base;
}

template <class... Texts>
void expect_refused(const Variables& variables, Texts... texts) {
  EXPECT_THAT([&] { world_of(variables); }, ThrowsMessage<ConfigError>(AllOf(HasSubstr(texts)...)));
}

const Variables kTorchrun = {
    {"RANK", "3"},
    {"WORLD_SIZE", "4"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "node1"},
    {"MASTER_PORT", "29500"},
    {"TORCHELASTIC_RUN_ID", "none"},
    {"TORCHELASTIC_RESTART_COUNT", "2"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"PMIX_NAMESPACE", "1362231297"},
    {"OMPI_MCA_ess_base_jobid", "1362231297"}};

const Variables kPmi = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

const Variables kMvapich = {
    {"MV2_COMM_WORLD_RANK", "1"},
    {"MV2_COMM_WORLD_SIZE", "2"},
    {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
    {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};

const Variables kSrun = {
    {"SLURM_PROCID", "5"},
    {"SLURM_NTASKS", "7"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "2"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_STEP_NUM_TASKS", "7"},
    {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
    {"SLURM_NODELIST", "node[07-09,12]"},
    {"SLURM_JOB_ID", "4711"}};

/// The variables that sbatch -n 4 sets for its script, before any srun.
const Variables kBatchScript = {
    {"ENVIRONMENT", "BATCH"},
    {"SLURM_PROCID", "0"},
    {"SLURM_NTASKS", "4"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "0"},
    {"SLURM_TASKS_PER_NODE", "4"},
    {"SLURM_JOB_ID", "4711"}};

void expect_ranks(
    const WorldSpec& world,
    const std::string& source,
    int rank,
    int size,
    int local_rank,
    int local_size) {
  EXPECT_EQ(world.source, source);
  EXPECT_EQ(world.rank, rank) << source;
  EXPECT_EQ(world.size, size) << source;
  EXPECT_EQ(world.local_rank, local_rank) << source;
  EXPECT_EQ(world.local_size, local_size) << source;
}

TEST(World, IsOneProcessWhenNoLauncherSpeaks) {
  const WorldSpec world = world_of({{"MASTER_ADDR", "node1"}, {"LOCAL_RANK", "0"}});
  expect_ranks(world, "alone", 0, 1, 0, 1);
  EXPECT_EQ(world.master_port, 0);
  EXPECT_FALSE(world.agent_store);
  EXPECT_TRUE(world.on_one_host());
}

TEST(World, ReadsTorchrun) {
  const WorldSpec world = world_of(kTorchrun);
  expect_ranks(world, "torchrun", 3, 4, 1, 2);
  EXPECT_EQ(world.master_addr, "node1");
  EXPECT_EQ(world.master_port, 29500);
  EXPECT_TRUE(world.agent_store);
  EXPECT_EQ(world.restart_count, 2);
  EXPECT_FALSE(world.on_one_host());
}

TEST(World, NamesLockstepsLauncherWhichSetsTorchrunsVariables) {
  const WorldSpec world = world_of(with(kTorchrun, {{"LOCKSTEP_LAUNCHER", "1"}}));
  expect_ranks(world, "lockstep launch", 3, 4, 1, 2);
}

TEST(World, HasAnAgentStoreOnlyIfTorchrunSetsIt) {
  EXPECT_FALSE(world_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
  EXPECT_FALSE(world_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", ""}})).agent_store);
  EXPECT_FALSE(world_of(with(kOpenMpi, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).agent_store);
  expect_refused(
      with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "maybe"}}), "TORCHELASTIC_USE_AGENT_STORE");
  expect_refused(
      with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "-1"}}), "TORCHELASTIC_RESTART_COUNT");
}

TEST(World, ReadsThePlainVariablesOfEnvInit) {
  const WorldSpec world = world_of(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29501"}});
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.size, 2);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_TRUE(world.on_one_host());
  EXPECT_EQ(world.master_addr, "127.0.0.1");
  EXPECT_EQ(world.master_port, 29501);
}

TEST(World, PlainVariablesOverSeveralHostsNeedTheLocalOnes) {
  const Variables plain = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29501"}};
  expect_refused(plain, "WORLD_SIZE=2", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  const WorldSpec world = world_of(with(plain, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}));
  EXPECT_EQ(world.local_rank, 0);
  EXPECT_FALSE(world.on_one_host());
}

TEST(World, AWorldOfOneNeedsNoMaster) {
  const WorldSpec world = world_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(world.source, "torchrun");
  EXPECT_EQ(world.local_size, 1);
  EXPECT_EQ(world.master_port, 0);
}

TEST(World, ReadsEveryFamilyOfMpi) {
  for (const auto& [source, variables] : std::map<std::string, Variables>{
           {"OpenMPI", kOpenMpi}, {"PMI", kPmi}, {"MVAPICH", kMvapich}}) {
    const WorldSpec world = world_of(with(variables, {{"MASTER_PORT", "29502"}}));
    EXPECT_EQ(world.source, source);
    EXPECT_EQ(world.rank, 1) << source;
    EXPECT_EQ(world.size, 2) << source;
    EXPECT_EQ(world.local_rank, 1) << source;
    EXPECT_EQ(world.local_size, 2) << source;
    EXPECT_EQ(world.master_addr, "127.0.0.1") << source;
    EXPECT_EQ(world.master_port, 29502) << source;
  }
}

TEST(World, ReadsSlurm) {
  const WorldSpec world = world_of(kSrun);
  expect_ranks(world, "SLURM", 5, 7, 1, 2);
  EXPECT_EQ(world.master_addr, "node07");
  EXPECT_GE(world.master_port, 20000);
  EXPECT_LT(world.master_port, 32768);
}

TEST(World, FindsTheTasksOfASlurmNodeInItsRunLengthList) {
  const auto local_size = [](const std::string& node, const std::string& list, const char* size) {
    return world_of(with(
                        kSrun,
                        {{"SLURM_NODEID", node},
                         {"SLURM_STEP_TASKS_PER_NODE", list},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_STEP_NUM_TASKS", size}}))
        .local_size;
  };
  EXPECT_EQ(local_size("0", "2(x3),1", "7"), 2);
  EXPECT_EQ(local_size("2", "2(x3),1", "7"), 2);
  EXPECT_EQ(local_size("3", "2(x3),1", "7"), 1);
  EXPECT_EQ(local_size("1", "3,4", "7"), 4);
  EXPECT_EQ(local_size("", "7", "7"), 7);
}

TEST(World, AnInvalidSlurmListIsIgnored) {
  for (const char* list :
       {"two", "2(x", "2(x3", "2(xthree),1", "2(x0)", "-2", ",", "2(x99999999999)", "(x3)"}) {
    expect_refused(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", list}}), "the local rank is unknown");
  }
  // The node number is past the list's end, or missing.
  expect_refused(with(kSrun, {{"SLURM_NODEID", "4"}}), "the local rank is unknown");
  expect_refused(with(kSrun, {{"SLURM_NODEID", ""}}), "the local rank is unknown");
}

TEST(World, TheTasksSlurmStartedCountMoreThanThoseAskedFor) {
  // srun -n 3 --ntasks-per-node=2: the second node has one.
  const WorldSpec last = world_of(with(
      kSrun,
      {{"SLURM_PROCID", "2"},
       {"SLURM_LOCALID", "0"},
       {"SLURM_NODEID", "1"},
       {"SLURM_STEP_NUM_TASKS", "3"},
       {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
       {"SLURM_NTASKS_PER_NODE", "2"}}));
  EXPECT_EQ(last.local_size, 1);
  // srun -n 1 in an allocation of four a node.
  const WorldSpec alone = world_of(
      {{"SLURM_PROCID", "0"},
       {"SLURM_NTASKS", "1"},
       {"SLURM_LOCALID", "0"},
       {"SLURM_NTASKS_PER_NODE", "4"}});
  EXPECT_EQ(alone.local_size, 1);
  const WorldSpec asked = world_of(with(
      kSrun,
      {{"SLURM_STEP_NUM_TASKS", "8"},
       {"SLURM_STEP_TASKS_PER_NODE", ""},
       {"SLURM_NTASKS_PER_NODE", "2"}}));
  EXPECT_EQ(asked.local_size, 2);
}

TEST(World, AStepOfSlurmWinsOverItsJob) {
  const WorldSpec world = world_of(with(
      kSrun,
      {{"SLURM_PROCID", "1"},
       {"SLURM_NTASKS", "16"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_NODEID", "1"},
       {"SLURM_LOCALID", "0"},
       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
       {"SLURM_TASKS_PER_NODE", "4(x4)"},
       {"SLURM_STEP_NODELIST", "node[09,12]"}}));
  EXPECT_EQ(world.size, 2);
  EXPECT_EQ(world.local_size, 1);
  EXPECT_EQ(world.master_addr, "node09");
}

TEST(World, ASlurmScriptOutsideSrunIsNotARank) {
  EXPECT_EQ(world_of(kBatchScript).source, "alone");
  EXPECT_EQ(world_of({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}}).source, "alone");
  EXPECT_EQ(world_of(with(kBatchScript, {{"SLURM_STEP_ID", "0"}})).source, "SLURM");
}

TEST(World, MpirunInsideSlurmIsNotAConflict) {
  // On the batch script's own host, and on another, where srun started mpirun's daemon.
  EXPECT_EQ(world_of(with(kBatchScript, kOpenMpi)).source, "OpenMPI");
  const WorldSpec remote = world_of(with(
      kOpenMpi,
      {{"OMPI_COMM_WORLD_RANK", "5"},
       {"OMPI_COMM_WORLD_SIZE", "6"},
       {"MASTER_ADDR", "node1"},
       {"ENVIRONMENT", "BATCH"},
       {"SLURM_STEP_ID", "3"},
       {"SLURM_PROCID", "1"},
       {"SLURM_NTASKS", "2"}}));
  EXPECT_EQ(remote.source, "OpenMPI");
  EXPECT_EQ(remote.rank, 5);
}

TEST(World, OneTorchrunAHostInsideAnotherLauncherIsNotAConflict) {
  const Variables srun_of_two = {
      {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(world_of(with(srun_of_two, kTorchrun)).source, "torchrun");
  EXPECT_EQ(world_of(with(srun_of_two, kTorchrun)).rank, 3);
  EXPECT_EQ(world_of(with(kOpenMpi, kTorchrun)).rank, 3);
  // With one rank on each host both launchers have equal world sizes; torchrun has its own order.
  const Variables one_a_host = with(
      kTorchrun,
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
  EXPECT_EQ(world_of(with(srun_of_two, one_a_host)).rank, 0);
  // Without TORCHELASTIC_RUN_ID the plain variables may be left over from another job.
  expect_refused(
      with(with(srun_of_two, kTorchrun), {{"TORCHELASTIC_RUN_ID", ""}}),
      "torchrun sets RANK=3 WORLD_SIZE=4",
      "SLURM sets SLURM_PROCID=1 SLURM_NTASKS=2",
      "unset those of one launcher");
}

TEST(World, AnOuterWorldOfOneIsNotAConflict) {
  const WorldSpec world = world_of(
      with(kOpenMpi, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}}));
  EXPECT_EQ(world.source, "OpenMPI");
}

TEST(World, TwoLaunchersThatDisagreeAreRefused) {
  expect_refused(
      with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
      "torchrun sets RANK=0 WORLD_SIZE=2",
      "OpenMPI sets OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2");
  expect_refused(with(kOpenMpi, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), "OpenMPI", "PMI_RANK=0");
  // Left over from an earlier try by hand, under a srun of seven.
  expect_refused(
      with(kSrun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "WORLD_SIZE=1", "SLURM_PROCID=5");
}

TEST(World, TwoLaunchersThatAgreeCompleteOneAnother) {
  // srun --mpi=pmi2 sets PMI's rank and size, but neither local rank nor job.
  const WorldSpec world = world_of(with(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}}));
  EXPECT_EQ(world.source, "PMI");
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.master_addr, "node07");
  EXPECT_EQ(world.master_port, world_of(kSrun).master_port);
}

TEST(World, RefusesValuesThatAreNotNumbers) {
  expect_refused(with(kTorchrun, {{"RANK", "abc"}}), "RANK", "'abc'", "whole number");
  expect_refused(with(kTorchrun, {{"RANK", "-1"}}), "RANK", "'-1'");
  expect_refused(with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE", "'0'");
  expect_refused(with(kTorchrun, {{"WORLD_SIZE", "4.0"}}), "WORLD_SIZE", "'4.0'");
  expect_refused(with(kTorchrun, {{"WORLD_SIZE", "99999999"}}), "WORLD_SIZE", "'99999999'");
  expect_refused(with(kTorchrun, {{"LOCAL_RANK", "x"}}), "LOCAL_RANK", "'x'");
  expect_refused(with(kTorchrun, {{"MASTER_PORT", "65536"}}), "MASTER_PORT", "'65536'");
  expect_refused(with(kTorchrun, {{"MASTER_PORT", "0"}}), "MASTER_PORT", "'0'");
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "abc"}}), "OMPI_COMM_WORLD_RANK");
  expect_refused(with(kPmi, {{"PMI_SIZE", "two"}}), "PMI_SIZE", "'two'");
  expect_refused(with(kMvapich, {{"MV2_COMM_WORLD_RANK", "r"}}), "MV2_COMM_WORLD_RANK");
  expect_refused(with(kSrun, {{"SLURM_PROCID", "p"}}), "SLURM_PROCID", "'p'");
  // The variables of a launcher that is not chosen are checked as strictly.
  expect_refused(with(kTorchrun, {{"PMI_RANK", "abc"}}), "PMI_RANK");
}

TEST(World, RefusesARankOutsideTheWorld) {
  expect_refused(with(kTorchrun, {{"RANK", "4"}}), "RANK=4", "WORLD_SIZE=4", "from 0 to 3");
  expect_refused(
      with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}), "OMPI_COMM_WORLD_RANK=2", "from 0 to 1");
  expect_refused(with(kTorchrun, {{"LOCAL_RANK", "2"}}), "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2");
  expect_refused(
      with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}), "LOCAL_WORLD_SIZE=5", "WORLD_SIZE=4");
}

TEST(World, RefusesHalfAFamily) {
  expect_refused({{"RANK", "0"}}, "RANK is set but WORLD_SIZE is not");
  expect_refused({{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set but RANK is not");
  expect_refused(with(kPmi, {{"PMI_SIZE", ""}}), "PMI_RANK is set but PMI_SIZE is not");
  expect_refused({{"SLURM_PROCID", "0"}}, "SLURM_PROCID is set");
}

TEST(World, SeveralHostsNeedAMasterAddress) {
  expect_refused(with(kTorchrun, {{"MASTER_ADDR", ""}}), "MASTER_ADDR is not set", "world of 4");
  expect_refused(
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
      "MASTER_ADDR is not set");
  expect_refused(with(kSrun, {{"SLURM_NODELIST", ""}}), "MASTER_ADDR is not set");
  EXPECT_EQ(world_of(with(kSrun, {{"MASTER_ADDR", "head"}})).master_addr, "head");
}

TEST(World, OneHostIsItsOwnMaster) {
  const WorldSpec world = world_of(
      with(kTorchrun, {{"MASTER_ADDR", ""}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "4"}}));
  EXPECT_EQ(world.master_addr, "127.0.0.1");
}

TEST(World, APortIsNeededWhereNoJobNamesOne) {
  expect_refused(with(kTorchrun, {{"MASTER_PORT", ""}}), "MASTER_PORT is not set", "world of 4");
  expect_refused(kPmi, "MASTER_PORT is not set");
  expect_refused(kMvapich, "MASTER_PORT is not set");
}

TEST(World, RanksOfOneJobDeriveTheSamePort) {
  const int first =
      world_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))
          .master_port;
  EXPECT_EQ(world_of(kOpenMpi).master_port, first);
  EXPECT_GE(first, 20000);
  EXPECT_LT(first, 32000);
  std::set<int> ports;
  for (int rank = 0; rank < 7; ++rank) {
    ports.insert(world_of(with(
                              kSrun,
                              {{"SLURM_PROCID", std::to_string(rank)},
                               {"SLURM_NODEID", std::to_string(rank / 2)},
                               {"SLURM_LOCALID", std::to_string(rank % 2)}}))
                     .master_port);
  }
  EXPECT_EQ(ports.size(), 1U);
}

TEST(World, TwoJobsAndTwoStepsOfOneJobDeriveDifferentPorts) {
  EXPECT_NE(
      world_of(kOpenMpi).master_port,
      world_of(with(
                   kOpenMpi,
                   {{"PMIX_NAMESPACE", "1362231298"}, {"OMPI_MCA_ess_base_jobid", "1362231298"}}))
          .master_port);
  EXPECT_NE(
      world_of(kSrun).master_port, world_of(with(kSrun, {{"SLURM_JOB_ID", "4712"}})).master_port);
  EXPECT_NE(
      world_of(kSrun).master_port, world_of(with(kSrun, {{"SLURM_STEP_ID", "1"}})).master_port);
}

TEST(World, AGivenPortWinsOverADerivedOne) {
  EXPECT_EQ(world_of(with(kSrun, {{"MASTER_PORT", "12345"}})).master_port, 12345);
}

TEST(World, IsNotOneProcessInAPodOfSeveral) {
  EXPECT_EQ(world_of({{"PET_NNODES", "1"}}).size, 1);
  EXPECT_THAT(
      [] {
        world_of({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}});
      },
      testing::ThrowsMessage<ConfigError>(testing::AllOf(
          testing::HasSubstr("PET_NNODES=2"), testing::HasSubstr("`lockstep launch`"))));
  // Under a launcher, whose ranks inherit them.
  EXPECT_EQ(
      world_of({{"PET_NNODES", "2"},
                {"RANK", "1"},
                {"WORLD_SIZE", "2"},
                {"LOCAL_RANK", "0"},
                {"LOCAL_WORLD_SIZE", "1"},
                {"MASTER_ADDR", "a"},
                {"MASTER_PORT", "1"}})
          .rank,
      1);
}

TEST(FirstSlurmHost, ReadsNodeLists) {
  EXPECT_EQ(first_slurm_host("node[07-09,12],gpu3"), "node07");
  EXPECT_EQ(first_slurm_host("gpu3,node[07-09]"), "gpu3");
  EXPECT_EQ(first_slurm_host("gpu3"), "gpu3");
  EXPECT_EQ(first_slurm_host("n[12,14-20]"), "n12");
  EXPECT_EQ(first_slurm_host("n[3]-ib,n4"), "n3-ib");
  EXPECT_EQ(first_slurm_host("rack[1-2]n[3,5],gpu7"), "rack1n3");
}

TEST(FirstSlurmHost, IsEmptyWhereAListCannotBeRead) {
  for (const char* list : {"", ",a", "node[", "node[]", "node[1-2", "node[,2]"}) {
    EXPECT_EQ(first_slurm_host(list), "") << list;
  }
}

}  // namespace
}  // namespace lockstep
