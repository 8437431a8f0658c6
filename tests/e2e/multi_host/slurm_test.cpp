// SPDX-License-Identifier: Apache-2.0
// Jobs under a real SLURM of two nodes, whose names differ from the machine's: srun starts the
// ranks or the launchers.
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

/// Runs commands beside a SLURM cluster; skips the test if there can be none.
class Slurm : public testing::Test {
 protected:
  void run(std::vector<std::string> words) {
    words.insert(words.begin(), {TWO_SLURM_NODES, folder_.path().string()});
    outcome_ = run_command(
        words,
        {"XDG_STATE_HOME=" + folder_.path().string(),
         "XDG_CONFIG_HOME=" + folder_.path().string()});
    if (outcome_.code == kSkipped) {
      GTEST_SKIP() << outcome_.err;
    }
  }
  /// Runs `lockstep launch --launcher slurm REST...` in an allocation of that many nodes.
  void run_job(const std::string& nodes, const std::vector<std::string>& rest) {
    std::vector<std::string> words = {
        "salloc", "-N", nodes, LOCKSTEP, "launch", "--launcher", "slurm"};
    words.insert(words.end(), rest.begin(), rest.end());
    run(words);
  }

  TestFolder folder_;
  Outcome outcome_;
};

TEST_F(Slurm, RanksThatSrunStartsTrainTogether) {
  run({"srun", "-N", "2", "-n", "4", WATCH_FIXTURE});
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 0) << outcome_.err;
  EXPECT_THAT(outcome_.out, HasSubstr("trained 4 ranks"));
}

TEST_F(Slurm, LaunchersThatSrunStartsTrainTogether) {
  run_job("2", {"-n", "2", WATCH_FIXTURE});
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 0) << outcome_.err;
  EXPECT_THAT(outcome_.out, HasSubstr("trained 4 ranks"));
}

TEST_F(Slurm, HostsAreTheNodesOfTheAllocation) {
  run_job("2", {"-n", "1", "sh", "-c", "echo $GROUP_RANK $SLURMD_NODENAME"});
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 0) << outcome_.err;
  EXPECT_THAT(
      outcome_.out, testing::AllOf(HasSubstr("0 lockstep-n1\n"), HasSubstr("1 lockstep-n2\n")));
}

TEST_F(Slurm, OneNodeNeedsNoNameOfTheMachine) {
  run_job("1", {"-n", "2", WATCH_FIXTURE});
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 0) << outcome_.err;
  EXPECT_THAT(outcome_.out, HasSubstr("trained 2 ranks"));
}

TEST_F(Slurm, HostsThatTheAllocationLacksAreRefused) {
  run_job("2", {"--nnodes", "3", "-n", "1", "true"});
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 2);
  EXPECT_THAT(
      outcome_.err,
      HasSubstr("--nnodes 3 is more than the 2 nodes of the allocation; request more with -N of "
                "salloc or sbatch"));
}

TEST_F(Slurm, AKilledRankEndsTheJobAndIsNamed) {
  run_job("2", {"-n", "2", "sh", "-c", "test $RANK != 3 || kill -9 $$; sleep 100"});
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 137) << outcome_.err;
  EXPECT_THAT(outcome_.err, HasSubstr("rank 3 of 4 was killed by SIGKILL"));
}

TEST_F(Slurm, SignalsToTheLauncherReachTheRanks) {
  const std::string ranks =
      "trap 'echo $RANK heard; exit 75' TERM; touch $0/up_$RANK; while :; do sleep 0.1; done";
  run(
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
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 75) << outcome_.err;
  EXPECT_THAT(outcome_.out, testing::AllOf(HasSubstr("0 heard"), HasSubstr("3 heard")));
}

}  // namespace
}  // namespace lockstep::e2e
