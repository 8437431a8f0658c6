// SPDX-License-Identifier: Apache-2.0
// What the ranks of a host share: little memory, a full /dev/shm, and that nothing of it is left.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/launch_harness.h"
#include "tests/e2e/shell.h"

namespace lockstep::faults {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

e2e::Outcome self_test_under(const std::string& script, const std::string& comm) {
  return e2e::run_command(
      {"unshare", "-m", "sh", "-c", script + " && exec " LOCKSTEP_BIN_DIR "/lockstep test -n 2"},
      {"OMP_NUM_THREADS=1", "LOCKSTEP_COMM=" + comm});
}

TEST(SharedMemory, AFullDevShmDoesNotMatter) {
  if (e2e::run_command({"unshare", "-m", "sh", "-c", "mount -t tmpfs none /dev/shm"}).code != 0) {
    GTEST_SKIP() << "nothing can be mounted here";
  }
  const e2e::Outcome outcome = self_test_under(
      "mount -t tmpfs -o size=8m none /dev/shm && { head -c 9m /dev/zero >/dev/shm/full "
      "2>/dev/null "
      "|| :; }",
      "shm");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(SharedMemory, ThatCannotBeHadIsSaidAndSocketsAreTaken) {
  const std::string limited = "ulimit -f 1024";
  const e2e::Outcome automatic = self_test_under(limited, "auto");
  EXPECT_EQ(automatic.code, 0) << automatic.err;
  EXPECT_THAT(
      automatic.err,
      AllOf(HasSubstr("Gloo instead of shared memory"), HasSubstr("ulimit -f unlimited")));
  const e2e::Outcome demanded = self_test_under(limited, "shm");
  EXPECT_NE(demanded.code, 0);
  EXPECT_THAT(demanded.err, AllOf(HasSubstr("ulimit -f unlimited"), Not(HasSubstr("SIGXFSZ"))));
}

/// Names in /dev/shm, and of the kernel's sockets, that may be ours.
std::set<std::string> traces() {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    found.insert(entry.path());
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (const auto at = line.find("@lockstep"); at != std::string::npos) {
      found.insert(line.substr(at));
    }
  }
  return found;
}

TEST(SharedMemory, LeavesNothingWhenAllRanksAreKilled) {
  const auto before = traces();
  e2e::LockstepRun run(e2e::launch("2", {WATCH_FIXTURE, "reduce"}));
  for (const int rank : {0, 1}) {
    run.rank_pid(rank);
  }
  for (const int rank : {0, 1}) {
    run.send_to_rank(rank, SIGKILL);
  }
  EXPECT_EQ(run.wait().code, 128 + SIGKILL);
  const auto after = traces();
  EXPECT_TRUE(std::includes(before.begin(), before.end(), after.begin(), after.end()))
      << testing::PrintToString(after);
}

}  // namespace
}  // namespace lockstep::faults
