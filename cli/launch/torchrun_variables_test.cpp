// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/torchrun_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/launch/launch_flags.h"

namespace lockstep::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

using Variables = std::map<std::string, std::string>;

/// The words of `lockstep launch`'s options, with those that variables give.
class TorchrunVariables : public testing::Test {
 protected:
  TorchrunVariables() {
    add_launch_flags(command_, flags_);
    add_refused_flags(command_);
  }
  std::vector<std::string> words(
      const Variables& variables, std::vector<std::string> given = {"launch"}) {
    add_torchrun_variables(Environment::of(variables), command_, given);
    return given;
  }
  CLI::App command_;
  LaunchFlags flags_;
};

TEST_F(TorchrunVariables, ThoseOfKubeflowBecomeOptions) {
  EXPECT_THAT(
      words(
          {{"PET_NNODES", "2"},
           {"PET_NPROC_PER_NODE", "auto"},
           {"PET_NODE_RANK", "1"},
           {"PET_MASTER_ADDR", "job-node-0-0.job"},
           {"PET_MASTER_PORT", "29400"}}),
      ElementsAre(
          "launch",
          "--nnodes=2",
          "--nproc-per-node=auto",
          "--node-rank=1",
          "--master-addr=job-node-0-0.job",
          "--master-port=29400"));
}

TEST_F(TorchrunVariables, ThoseOfAPodOfAPyTorchJobNameItsHosts) {
  const Variables pod = {
      {"WORLD_SIZE", "2"},
      {"RANK", "1"},
      {"MASTER_ADDR", "job-master-0"},
      {"MASTER_PORT", "23456"}};
  EXPECT_THAT(
      words(pod),
      ElementsAre(
          "launch",
          "--nnodes=2",
          "--node-rank=1",
          "--master-addr=job-master-0",
          "--master-port=23456"));
  const auto with = [&pod](const char* variable, const char* value) {
    Variables all = pod;
    all[variable] = value;
    return all;
  };
  // Another launcher has started this one, or the job has one process, or is on this host.
  EXPECT_THAT(words(with("LOCAL_RANK", "0")), ElementsAre("launch"));
  EXPECT_THAT(words(with("WORLD_SIZE", "1")), ElementsAre("launch"));
  EXPECT_THAT(words(with("MASTER_ADDR", "127.0.0.1")), ElementsAre("launch"));
  EXPECT_THAT(words(with("MASTER_PORT", "")), ElementsAre("launch"));
  EXPECT_THAT(words(with("PET_NNODES", "3")), ElementsAre("launch", "--nnodes=3"));
  EXPECT_THAT(words(pod, {"launch", "--nnodes=4"}), ElementsAre("launch", "--nnodes=4"));
  EXPECT_THAT(words(pod, {"launch", "--standalone"}), ElementsAre("launch", "--standalone"));
}

TEST_F(TorchrunVariables, OthersAndEmptyOnesAddNothing) {
  EXPECT_THAT(words({{"PET_NNODES", ""}, {"PET_STORE", "x"}}), ElementsAre("launch"));
  EXPECT_THAT(words({{"PET_STANDALONE", "0"}}), ElementsAre("launch"));
}

TEST_F(TorchrunVariables, ThoseOfFlagsAreOnOrOff) {
  EXPECT_THAT(
      words({{"PET_STANDALONE", "1"}, {"PET_MAX_RESTARTS", "3"}}),
      ElementsAre("launch", "--max-restarts=3", "--standalone"));
  EXPECT_THAT(
      [&] {
        words({{"PET_STANDALONE", "perhaps"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("PET_STANDALONE")));
}

TEST_F(TorchrunVariables, OneThatContradictsAnOptionIsAnError) {
  const Variables two = {{"PET_NNODES", "2"}};
  EXPECT_THAT(words(two, {"launch", "--nnodes=2"}), ElementsAre("launch", "--nnodes=2"));
  EXPECT_THAT(
      [&] {
        words(two, {"launch", "--nnodes=3"});
      },
      ThrowsMessage<ConfigError>(
          HasSubstr("PET_NNODES=2 and --nnodes 3 differ; omit the option, or unset the variable")));
  // --shutdown-timeout and --grace-seconds are one option.
  EXPECT_THAT(
      [&] {
        words({{"PET_SHUTDOWN_TIMEOUT", "5"}}, {"launch", "--grace-seconds=6"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("PET_SHUTDOWN_TIMEOUT=5 and --grace-seconds 6")));
}

TEST_F(TorchrunVariables, AnEquivalentValueAddsNothing) {
  EXPECT_THAT(
      words({{"PET_NNODES", "2:2"}}, {"launch", "--nnodes=2"}),
      ElementsAre("launch", "--nnodes=2"));
  EXPECT_THAT(
      words({{"PET_NNODES", "2"}, {"PET_NPROC_PER_NODE", "4"}}, {"launch", "--num-processes=8"}),
      ElementsAre("launch", "--num-processes=8", "--nnodes=2"));
  EXPECT_THAT(
      words({{"PET_NPROC_PER_NODE", "4"}, {"LOCKSTEP_NUM_PROCESSES", "4"}}),
      ElementsAre("launch", "--nproc-per-node=4"));
}

TEST_F(TorchrunVariables, OneThatContradictsAVariableOfOursIsAnError) {
  EXPECT_THAT(
      [&] {
        words({{"PET_NNODES", "2"}, {"LOCKSTEP_NUM_MACHINES", "3"}});
      },
      ThrowsMessage<ConfigError>(
          HasSubstr("PET_NNODES=2 and LOCKSTEP_NUM_MACHINES=3 differ; unset one of them")));
  EXPECT_THAT(
      [&] {
        words({{"PET_NPROC_PER_NODE", "2"}, {"LOCKSTEP_NUM_PROCESSES", "3"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("unset one of them")));
}

TEST_F(TorchrunVariables, AreNamedWhereAMessageMentionsTheirOptions) {
  const std::vector<VariableOption> given = {
      {"PET_NNODES", "--nnodes"}, {"PET_NPROC_PER_NODE", "--nproc-per-node"}};
  EXPECT_THAT(
      [&] {
        rethrow_naming_variables(ConfigError("lockstep launch", "--nnodes makes no sense"), given);
      },
      ThrowsMessage<ConfigError>(
          "[lockstep launch] --nnodes makes no sense; --nnodes comes from PET_NNODES"));
  EXPECT_THAT(
      [&] { rethrow_naming_variables(ConfigError("lockstep launch", "-n makes no sense"), given); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("--nproc-per-node comes from PET_NPROC_PER_NODE"),
          Not(HasSubstr("PET_NNODES")))));
  EXPECT_THAT(
      [&] { rethrow_naming_variables(ConfigError("x", "no --nnodes-like option"), given); },
      ThrowsMessage<ConfigError>("[x] no --nnodes-like option"));
}

}  // namespace
}  // namespace lockstep::cli
