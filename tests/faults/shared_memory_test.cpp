// SPDX-License-Identifier: Apache-2.0
// The shared memory of a host's ranks: too little memory, a full /dev/shm, and no remains.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/harness/run_command.h"

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

TEST(SharedMemory, IfUnavailableIsReportedAndReplacedBySockets) {
  const std::string limited = "ulimit -f 1024";
  const e2e::Outcome automatic = self_test_under(limited, "auto");
  EXPECT_EQ(automatic.code, 0) << automatic.err;
  EXPECT_THAT(
      automatic.err,
      AllOf(HasSubstr("shared memory is not available"), HasSubstr("ulimit -f unlimited")));
  const e2e::Outcome demanded = self_test_under(limited, "shm");
  EXPECT_NE(demanded.code, 0);
  EXPECT_THAT(demanded.err, AllOf(HasSubstr("ulimit -f unlimited"), Not(HasSubstr("SIGXFSZ"))));
}

/// Returns the sockets of a process, by their inodes: "socket:[1234]".
std::set<std::string> sockets_of(int pid) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (target.rfind("socket:", 0) == 0) {
      found.insert(target);
    }
  }
  return found;
}

/// Returns the lines of /proc/net/unix for `sockets`, by inode, since other jobs of this host have
/// sockets with similar names.
std::vector<std::string> still_there(const std::set<std::string>& sockets) {
  std::vector<std::string> found;
  std::ifstream all("/proc/net/unix");
  for (std::string line; std::getline(all, line);) {
    std::istringstream words(line);
    std::string ignored;
    std::string inode;
    words >> ignored >> ignored >> ignored >> ignored >> ignored >> ignored >> inode;
    if (sockets.count("socket:[" + inode + "]") != 0) {
      found.push_back(line);
    }
  }
  return found;
}

TEST(SharedMemory, LeavesNothingWhenAllRanksAreKilled) {
  e2e::LockstepRun run(e2e::launch("2", {WATCH_FIXTURE, "reduce"}));
  std::set<std::string> sockets;
  for (const int rank : {0, 1}) {
    const std::string proc = "/proc/" + std::to_string(run.rank_pid(rank));
    std::ifstream maps(proc + "/maps");
    const std::string mapped((std::istreambuf_iterator<char>(maps)), {});
    EXPECT_THAT(mapped, HasSubstr("memfd:lockstep (deleted)")) << "this rank shares nothing";
    EXPECT_THAT(mapped, Not(HasSubstr("/dev/shm"))) << "what has a name can be left behind";
    sockets.merge(sockets_of(run.rank_pid(rank)));
  }
  for (const int rank : {0, 1}) {
    run.send_to_rank(rank, SIGKILL);
  }
  EXPECT_EQ(run.wait().code, 128 + SIGKILL);
  EXPECT_THAT(still_there(sockets), testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep::faults
