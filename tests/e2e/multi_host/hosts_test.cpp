// SPDX-License-Identifier: Apache-2.0
// Jobs of several hosts that one `lockstep launch` starts: over ssh between network namespaces,
// each with its own sshd and address, and with mpirun on this machine.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSkipped = 77;

/// Runs `lockstep launch` on the first of two hosts; skips the test if there can be none.
class Hosts : public testing::Test {
 protected:
  /// Runs `lockstep launch REST`. The shell code `beside` runs beside it on the same host, with the
  /// launcher's pid in $job; `before` runs before it.
  void run(
      const std::string& rest, const std::string& beside = "", const std::string& before = ":") {
    const std::string command = std::string(LOCKSTEP) + " launch --launcher-args '-F " + folder() +
                                "/ssh_config' --hostfile " + folder() + "/hosts " + rest;
    const std::string script =
        "cd " + folder() + "; " + before + "; " +
        (beside.empty() ? command : command + " & job=$!; " + beside + "; wait $job");
    outcome_ = run_command(
        {SEVERAL_HOSTS, "2", folder(), "bash", "-c", script},
        {"XDG_STATE_HOME=" + folder(), "LOCKSTEP_JOB_TOKEN="});
    if (outcome_.code == kSkipped) {
      GTEST_SKIP() << outcome_.err;
    }
  }
  std::string folder() const { return folder_.path().string(); }
  /// Shell code that waits until each of the four ranks has created the file up_RANK.
  std::string until_ranks_are_up() const {
    const std::string up = folder() + "/up_";
    return "until [ -e " + up + "0 -a -e " + up + "1 -a -e " + up + "2 -a -e " + up +
           "3 ]; do sleep 0.1; done; ";
  }

  TestFolder folder_;
  Outcome outcome_;
};

TEST_F(Hosts, TrainTogetherOverSsh) {
  run(std::string(WATCH_FIXTURE));
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 0) << outcome_.out << outcome_.err;
  EXPECT_THAT(outcome_.out, HasSubstr("trained 4 ranks, master 127.0.0.1"));
}

TEST_F(Hosts, TakeTheEnvironmentFolderAndSlotsAlong) {
  std::ofstream(folder_ / ".lockstep_env") << "FROM_FILE=of the file\n";
  run("--env $'GIVEN=\\xe9 a \\'b\\' $HOME' --include 10.77.0.1:0@10.77.0.2 --rank-prefix sh -c "
      "'echo $RANK of $WORLD_SIZE: $GIVEN, $FROM_FILE, $PWD, ${LOCKSTEP_NODE_SPEC:-no spec}; "
      "ip -o -4 addr show eth0'");
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 0) << outcome_.err;
  const std::string rest =
      ": \xe9 a 'b' $HOME, of the file, " + folder_.path().string() + ", no spec\n";
  EXPECT_THAT(
      outcome_.out,
      AllOf(
          HasSubstr("[rank 0] 0 of 3" + rest),
          HasSubstr("[rank 1] 1 of 3" + rest),
          HasSubstr("[rank 2] 2 of 3" + rest),
          HasSubstr("inet 10.77.0.1/24"),
          HasSubstr("inet 10.77.0.2/24")));
}

/// The strangers' address is no host's of the job. They connect to every port where ranks listen.
TEST_F(Hosts, StrangersAtTheRanksPortsDisturbNoRank) {
  std::ofstream(folder_ / "strangers.py") << R"(
import socket, subprocess, sys, time
guarded, connections = 0, []
for host in ("host1", "host2"):
    lines = subprocess.check_output(["ip", "netns", "exec", host, "ss", "-Hltnp"], text=True)
    for line in lines.splitlines():
        address, port = line.split()[3].rsplit(":", 1)
        if "comm_fixture" not in line or not address.startswith("10.77.0."):
            continue
        guarded += 1
        for i in range(1100):
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind(("10.77.0.9", 0))
            connection.connect_ex((address, int(port)))
            connections.append(connection)
time.sleep(1)
connected = 0
for connection in connections:
    try:
        connection.getpeername()
        connected += 1
    except OSError:
        pass
print("strangers at", guarded, "ports:", connected, "connected", flush=True)
time.sleep(2)
)";
  run("sh -c 'ulimit -n 300; exec " COMM_FIXTURE " train 8 " + folder() + "/up_'",
      until_ranks_are_up() +
          "ulimit -n 20000; "
          "ip addr add 10.77.0.9/24 dev eth0; " LOCKSTEP_PYTHON " strangers.py");
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 0) << outcome_.out << outcome_.err;
  EXPECT_THAT(outcome_.out, testing::ContainsRegex("strangers at [1-9][0-9]* ports: 0 connected"));
  EXPECT_THAT(outcome_.out, HasSubstr("rank 3 is done"));
}

TEST_F(Hosts, AllEndWhenARankOfTheOtherIsKilled) {
  run("sh -c 'test $RANK != 3 || kill -9 $$; sleep 100'");
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 137) << outcome_.err;
  EXPECT_THAT(outcome_.err, HasSubstr("rank 3 of 4 was killed by SIGKILL"));
}

/// Network namespaces share their processes, so every remaining process is visible.
TEST_F(Hosts, LeaveNoProcessBehindWhenTheLauncherIsKilled) {
  run("sh -c 'touch " + folder() + "/up_$RANK; exec sleep 98765'",
      until_ranks_are_up() +
          "kill -9 $job; "
          "for i in $(seq 100); do pgrep -xf 'sleep 98765' >/dev/null || break; sleep 0.1; done; "
          "pgrep -xfc 'sleep 98765' | sed 's/^/left: /'");
  if (IsSkipped()) {
    return;
  }
  EXPECT_THAT(outcome_.out, HasSubstr("left: 0\n")) << outcome_.err;
}

TEST_F(Hosts, EndWithASignalToTheLauncher) {
  run("sh -c 'trap \"echo $RANK heard; exit 75\" TERM; touch " + folder() +
          "/up_$RANK; while :; do sleep 0.1; done'",
      until_ranks_are_up() + "kill -TERM $job");
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 75) << outcome_.err;
  EXPECT_THAT(
      outcome_.out,
      AllOf(
          HasSubstr("0 heard"), HasSubstr("1 heard"), HasSubstr("2 heard"), HasSubstr("3 heard")));
}

/// The command is the job of a shell with job control.
TEST_F(Hosts, ArePausedByCtrlZAndContinuedByFg) {
  const std::string ticks = "cat " + folder() + "/up_* | wc -c";
  run("sh -c 'while :; do printf x >> " + folder() + "/up_$RANK; sleep 0.1; done'",
      until_ranks_are_up() + "kill -TSTP $job; sleep 1; before=$(" + ticks +
          "); sleep 3; echo paused: $(($(" + ticks +
          ") - before)); kill -CONT $job; for i in $(seq 100); do sleep 0.1; [ $(" + ticks +
          ") -le $((before + 3)) ] || break; done; echo continued: $(($(" + ticks +
          ") > before)); kill -TERM $job; wait -f $job; exit $?",
      "set -m");
  if (IsSkipped()) {
    return;
  }
  EXPECT_EQ(outcome_.code, 143) << outcome_.err;
  EXPECT_THAT(outcome_.out, AllOf(HasSubstr("paused: 0\n"), HasSubstr("continued: 1\n")))
      << outcome_.err;
}

/// SLURM sends a signal, and soon SIGKILL, although the grace of the ranks is half a minute.
TEST_F(Hosts, LeaveNoProcessBehindWhenTheLauncherIsKilledAfterASignal) {
  // Compares pids, since between two sleeps a search by name would miss a rank's shell.
  run("sh -c 'trap \"\" TERM; echo $$ > " + folder() + "/pid_$RANK; mv " + folder() +
          "/pid_$RANK " + folder() + "/up_$RANK; while :; do sleep 0.198765; done'",
      until_ranks_are_up() +
          "kill $job; sleep 0.5; kill -9 $job; "
          "left() { for pid in $(cat " +
          folder() +
          "/up_*); do ! kill -0 $pid 2>/dev/null || echo $pid; done; }; "
          "for i in $(seq 100); do [ -n \"$(left)\" ] || break; sleep 0.1; done; "
          "echo left: $(left | wc -l)");
  if (IsSkipped()) {
    return;
  }
  EXPECT_THAT(outcome_.out, HasSubstr("left: 0\n")) << outcome_.err;
}

TEST_F(Hosts, AHostThatCannotBeReachedIsNamed) {
  std::ofstream(folder_ / "hosts") << "10.77.0.9 slots=1\n";  // Before those that are there.
  run("sleep 100");
  if (IsSkipped()) {
    return;
  }
  EXPECT_NE(outcome_.code, 0);
  EXPECT_THAT(
      outcome_.err,
      AllOf(
          HasSubstr("ssh to 10.77.0.9"),
          HasSubstr("No route to host"),
          testing::Not(HasSubstr("SIGKILL"))));
}

TEST_F(Hosts, AHostWithAnUnknownKeyIsNamed) {
  run("sleep 100", "", "sed -i s/accept-new/yes/ ssh_config");
  if (IsSkipped()) {
    return;
  }
  EXPECT_NE(outcome_.code, 0);
  EXPECT_THAT(
      outcome_.err,
      AllOf(HasSubstr("ssh to 10.77.0.2"), HasSubstr("Host key verification failed")));
}

/// Jobs whose launchers mpirun starts, on this machine.
class Mpirun : public testing::Test {
 protected:
  std::vector<std::string> words(const std::vector<std::string>& rest) const {
    std::ofstream(folder_ / "hosts") << "localhost slots=2\n";
    std::vector<std::string> all = {
        "launch",
        "--launcher",
        "openmpi",
        "--launcher-args",
        "--oversubscribe",
        "--hostfile",
        (folder_ / "hosts").string()};
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }

  TestFolder folder_;
};

TEST_F(Mpirun, LaunchersThatItStartsTrainTogether) {
  const Outcome outcome = run_clean(words({WATCH_FIXTURE}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trained 2 ranks"));
}

TEST_F(Mpirun, PassesSignalsOnToTheRanks) {
  LockstepRun job(words(
      {"sh",
       "-c",
       "trap 'echo $RANK heard USR1' USR1; trap 'exit 75' TERM; echo ready $RANK $$; "
       "while :; do sleep 0.1; done"}));
  job.rank_pid(0);
  job.rank_pid(1);
  job.send(SIGUSR1);
  job.await_out("0 heard USR1");
  job.await_out("1 heard USR1");
  job.send(SIGTERM);
  EXPECT_EQ(job.wait().code, 75);
  EXPECT_THAT(job.survivors(), testing::IsEmpty());
}

TEST_F(Mpirun, LeavesNoProcessBehindWhenTheLauncherIsKilled) {
  LockstepRun job(words({"sh", "-c", "echo ready $RANK $$; exec sleep 1000"}));
  job.rank_pid(0);
  job.rank_pid(1);
  job.send(SIGKILL);
  job.wait();
  EXPECT_THAT(job.survivors(), testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep::e2e
