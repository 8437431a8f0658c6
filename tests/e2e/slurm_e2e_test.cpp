// SPDX-License-Identifier: Apache-2.0
// Under a real SLURM of one node: ranks that srun starts, and launchers that srun starts.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/shell.h"

namespace lockstep::e2e {
namespace {

using testing::HasSubstr;

constexpr int kSkipped = 77;

/// Runs a command where SLURM's commands find a cluster.
class Slurm : public testing::Test {
 protected:
  Outcome run(std::vector<std::string> words) {
    words.insert(words.begin(), {ONE_SLURM_NODE, folder_.path().string()});
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
  const Outcome outcome = run({"srun", "-n", "2", WATCH_FIXTURE});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trained 2 ranks"));
}

TEST_F(Slurm, LaunchersThatSrunStartsTrainTogether) {
  const Outcome outcome = run(
      {"salloc", "-N", "1", LOCKSTEP, "launch", "--launcher", "slurm", "-n", "2", WATCH_FIXTURE});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trained 2 ranks"));
}

TEST_F(Slurm, AKilledRankEndsTheJobAndIsNamed) {
  const Outcome outcome = run(
      {"salloc",
       "-N",
       "1",
       LOCKSTEP,
       "launch",
       "--launcher",
       "slurm",
       "-n",
       "2",
       "sh",
       "-c",
       "test $RANK != 1 || kill -9 $$; sleep 100"});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 137) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 of 2 was killed by SIGKILL"));
}

TEST_F(Slurm, SignalsToTheLauncherReachTheRanks) {
  const std::string ranks =
      "trap 'echo $RANK heard; exit 75' TERM; touch $0/up_$RANK; while :; do sleep 0.1; done";
  const Outcome outcome = run(
      {"salloc",
       "-N",
       "1",
       "bash",
       "-c",
       "$0 launch --launcher slurm -n 2 sh -c \"$1\" $2 & "
       "until [ -e $2/up_0 -a -e $2/up_1 ]; do sleep 0.1; done; kill $!; wait $!",
       LOCKSTEP,
       ranks,
       folder_.path().string()});
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_THAT(outcome.out, testing::AllOf(HasSubstr("0 heard"), HasSubstr("1 heard")));
}

}  // namespace
}  // namespace lockstep::e2e
