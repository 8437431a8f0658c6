// SPDX-License-Identifier: Apache-2.0
// Under a real SLURM of two nodes: ranks that srun starts, and launchers that srun starts. The
// nodes are not called as the machine is.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

using testing::HasSubstr;

constexpr int kSkipped = 77;

/// Runs a command where SLURM's commands find a cluster.
class Slurm : public testing::Test {
 protected:
  Outcome run(std::vector<std::string> words) {
    words.insert(words.begin(), {TWO_SLURM_NODES, folder_.path().string()});
    Outcome outcome = run_command(
        words,
        {"XDG_STATE_HOME=" + folder_.path().string(),
         "XDG_CONFIG_HOME=" + folder_.path().string()});
    skipped_ = outcome.code == kSkipped;
    return outcome;
  }

  TestFolder folder_;
  bool skipped_ = false;
};

TEST_F(Slurm, RanksThatSrunStartsTrainTogether) {
  const Outcome outcome = run({"srun", "-N", "2", "-n", "4", WATCH_FIXTURE});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trained 4 ranks"));
}

TEST_F(Slurm, LaunchersThatSrunStartsTrainTogether) {
  const Outcome outcome = run(
      {"salloc", "-N", "2", LOCKSTEP, "launch", "--launcher", "slurm", "-n", "2", WATCH_FIXTURE});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trained 4 ranks"));
}

TEST_F(Slurm, HostsAreTheNodesOfTheAllocation) {
  const Outcome outcome = run(
      {"salloc",
       "-N",
       "2",
       LOCKSTEP,
       "launch",
       "--launcher",
       "slurm",
       "-n",
       "1",
       "sh",
       "-c",
       "echo $GROUP_RANK $SLURMD_NODENAME"});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out, testing::AllOf(HasSubstr("0 lockstep-n1\n"), HasSubstr("1 lockstep-n2\n")));
}

TEST_F(Slurm, OneNodeNeedsNoNameOfTheMachine) {
  const Outcome outcome = run(
      {"salloc", "-N", "1", LOCKSTEP, "launch", "--launcher", "slurm", "-n", "2", WATCH_FIXTURE});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trained 2 ranks"));
}

TEST_F(Slurm, HostsThatTheAllocationLacksAreRefused) {
  const Outcome outcome = run(
      {"salloc",
       "-N",
       "2",
       LOCKSTEP,
       "launch",
       "--launcher",
       "slurm",
       "--nnodes",
       "3",
       "-n",
       "1",
       "true"});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("got 3, expected at most 2; ask salloc or sbatch for more"));
}

TEST_F(Slurm, AKilledRankEndsTheJobAndIsNamed) {
  const Outcome outcome = run(
      {"salloc",
       "-N",
       "2",
       LOCKSTEP,
       "launch",
       "--launcher",
       "slurm",
       "-n",
       "2",
       "sh",
       "-c",
       "test $RANK != 3 || kill -9 $$; sleep 100"});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 137) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank 3 of 4 was killed by SIGKILL"));
}

TEST_F(Slurm, SignalsToTheLauncherReachTheRanks) {
  const std::string ranks =
      "trap 'echo $RANK heard; exit 75' TERM; touch $0/up_$RANK; while :; do sleep 0.1; done";
  const Outcome outcome = run(
      {"salloc",
       "-N",
       "2",
       "bash",
       "-c",
       "$0 launch --launcher slurm -n 2 sh -c \"$1\" $2 & "
       "until [ -e $2/up_0 -a -e $2/up_1 -a -e $2/up_2 -a -e $2/up_3 ]; do sleep 0.1; done; kill "
       "$!; wait $!",
       LOCKSTEP,
       ranks,
       folder_.path().string()});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_THAT(outcome.out, testing::AllOf(HasSubstr("0 heard"), HasSubstr("3 heard")));
}

}  // namespace
}  // namespace lockstep::e2e
