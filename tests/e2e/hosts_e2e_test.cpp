// SPDX-License-Identifier: Apache-2.0
// Jobs of several hosts that one `lockstep launch` starts: over ssh between network namespaces,
// which have an sshd and an address of their own each, and with mpirun and srun on this machine.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/run_command.h"
#include "tests/e2e/launch_harness.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSkipped = 77;

/// Runs `lockstep launch OPTIONS PROGRAM` on the first of two hosts.
class Hosts : public testing::Test {
 protected:
  /// `beside` is a piece of shell that runs there beside it, $job being its pid; `before` runs
  /// before.
  Outcome run(
      const std::string& rest, const std::string& beside = "", const std::string& before = ":") {
    const std::string folder = folder_.path().string();
    const std::string command = std::string(LOCKSTEP) + " launch --launcher-args '-F " + folder +
                                "/ssh_config' --hostfile " + folder + "/hosts " + rest;
    const std::string script =
        "cd " + folder + "; " + before + "; " +
        (beside.empty() ? command : command + " & job=$!; " + beside + "; wait $job");
    Outcome outcome = run_command(
        {SEVERAL_HOSTS, "2", folder, "bash", "-c", script},
        {"XDG_STATE_HOME=" + folder, "LOCKSTEP_JOB_TOKEN="});
    skipped_ = outcome.code == kSkipped;
    return outcome;
  }

  TestFolder folder_;
  bool skipped_ = false;
};

TEST_F(Hosts, TrainTogetherOverSsh) {
  const Outcome outcome = run(std::string(WATCH_FIXTURE));
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("trained 4 ranks, master 127.0.0.1"));
}

TEST_F(Hosts, TakeTheEnvironmentFolderAndSlotsAlong) {
  std::ofstream(folder_ / ".lockstep_env") << "FROM_FILE=of the file\n";
  const Outcome outcome = run(
      "--env $'GIVEN=\\xe9 a \\'b\\' $HOME' --include 10.77.0.1:0@10.77.0.2 --rank-prefix sh -c "
      "'echo $RANK of $WORLD_SIZE: $GIVEN, $FROM_FILE, $PWD, ${LOCKSTEP_NODE_SPEC:-no spec}; "
      "ip -o -4 addr show eth0'");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string rest =
      ": \xe9 a 'b' $HOME, of the file, " + folder_.path().string() + ", no spec\n";
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("[rank 0] 0 of 3" + rest),
          HasSubstr("[rank 1] 1 of 3" + rest),
          HasSubstr("[rank 2] 2 of 3" + rest),
          HasSubstr("inet 10.77.0.1/24"),
          HasSubstr("inet 10.77.0.2/24")));
}

/// From an address that is no host's of the job, at every port where its ranks listen.
TEST_F(Hosts, StrangersAtTheRanksPortsDisturbNobody) {
  const std::string folder = folder_.path().string();
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
  const Outcome outcome =
      run("sh -c 'ulimit -n 300; exec " COMM_FIXTURE " train 8 " + folder + "/up_'",
          "until [ -e " + folder + "/up_0 -a -e " + folder + "/up_1 -a -e " + folder +
              "/up_2 -a -e " + folder +
              "/up_3 ]; do sleep 0.1; done; ulimit -n 20000; "
              "ip addr add 10.77.0.9/24 dev eth0; " LOCKSTEP_PYTHON " strangers.py");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, testing::ContainsRegex("strangers at [1-9][0-9]* ports: 0 connected"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 3 is done"));
}

TEST_F(Hosts, AllEndWhenARankOfTheOtherIsKilled) {
  const Outcome outcome = run("sh -c 'test $RANK != 3 || kill -9 $$; sleep 100'");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 137) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank 3 of 4 was killed by SIGKILL"));
}

/// Namespaces share their processes: whoever is left can be seen.
TEST_F(Hosts, LeaveNobodyBehindWhenTheLauncherIsKilled) {
  const std::string folder = folder_.path().string();
  const Outcome outcome = run(
      "sh -c 'touch " + folder + "/up_$RANK; exec sleep 98765'",
      "until [ -e " + folder + "/up_0 -a -e " + folder + "/up_1 -a -e " + folder + "/up_2 -a -e " +
          folder +
          "/up_3 ]; do sleep 0.1; done; kill -9 $job; "
          "for i in $(seq 100); do pgrep -xf 'sleep 98765' >/dev/null || break; sleep 0.1; done; "
          "pgrep -xfc 'sleep 98765' | sed 's/^/left: /'");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_THAT(outcome.out, HasSubstr("left: 0\n")) << outcome.err;
}

TEST_F(Hosts, EndWithASignalToTheLauncher) {
  const std::string folder = folder_.path().string();
  const Outcome outcome =
      run("sh -c 'trap \"echo $RANK heard; exit 75\" TERM; touch " + folder +
              "/up_$RANK; while :; do sleep 0.1; done'",
          "until [ -e " + folder + "/up_0 -a -e " + folder + "/up_1 -a -e " + folder +
              "/up_2 -a -e " + folder + "/up_3 ]; do sleep 0.1; done; kill -TERM $job");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("0 heard"), HasSubstr("1 heard"), HasSubstr("2 heard"), HasSubstr("3 heard")));
}

/// The command is the job of a shell with job control.
TEST_F(Hosts, ArePausedByCtrlZAndContinuedByFg) {
  const std::string folder = folder_.path().string();
  const std::string ticks = "cat " + folder + "/up_* | wc -c";
  const Outcome outcome = run(
      "sh -c 'while :; do printf x >> " + folder + "/up_$RANK; sleep 0.1; done'",
      "until [ -e " + folder + "/up_0 -a -e " + folder + "/up_1 -a -e " + folder + "/up_2 -a -e " +
          folder + "/up_3 ]; do sleep 0.1; done; kill -TSTP $job; sleep 1; before=$(" + ticks +
          "); sleep 3; echo paused: $(($(" + ticks +
          ") - before)); kill -CONT $job; for i in $(seq 100); do sleep 0.1; [ $(" + ticks +
          ") -le $((before + 3)) ] || break; done; echo continued: $(($(" + ticks +
          ") > before)); kill -TERM $job; wait -f $job; exit $?",
      "set -m");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(outcome.code, 143) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("paused: 0\n"), HasSubstr("continued: 1\n")))
      << outcome.err;
}

/// As SLURM does it: a signal, and soon the end, though the ranks would have had half a minute.
TEST_F(Hosts, LeaveNobodyBehindWhenTheLauncherIsKilledAfterASignal) {
  const std::string folder = folder_.path().string();
  const Outcome outcome =
      // By pid: between two sleeps a rank's shell would not be seen by the name of what it runs.
      run("sh -c 'trap \"\" TERM; echo $$ > " + folder + "/pid_$RANK; mv " + folder +
              "/pid_$RANK " + folder + "/up_$RANK; while :; do sleep 0.198765; done'",
          "until [ -e " + folder + "/up_0 -a -e " + folder + "/up_1 -a -e " + folder +
              "/up_2 -a -e " + folder +
              "/up_3 ]; do sleep 0.1; done; kill $job; sleep 0.5; kill -9 $job; "
              "left() { for pid in $(cat " +
              folder +
              "/up_*); do ! kill -0 $pid 2>/dev/null || echo $pid; done; }; "
              "for i in $(seq 100); do [ -n \"$(left)\" ] || break; sleep 0.1; done; "
              "echo left: $(left | wc -l)");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_THAT(outcome.out, HasSubstr("left: 0\n")) << outcome.err;
}

TEST_F(Hosts, AHostThatCannotBeReachedIsNamed) {
  const std::string folder = folder_.path().string();
  std::ofstream(folder_ / "hosts") << "10.77.0.9 slots=1\n";  // Before those that are there.
  const Outcome outcome = run("sleep 100");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("ssh to 10.77.0.9"),
          HasSubstr("No route to host"),
          testing::Not(HasSubstr("SIGKILL"))));
}

TEST_F(Hosts, AHostWhoseKeyIsUnknownIsNamed) {
  const Outcome outcome = run("sleep 100", "", "sed -i s/accept-new/yes/ ssh_config");
  if (skipped_) {
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(
      outcome.err, AllOf(HasSubstr("ssh to 10.77.0.2"), HasSubstr("Host key verification failed")));
}

/// Launchers that mpirun starts, on this machine.
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

TEST_F(Mpirun, LeavesNobodyBehindWhenTheLauncherIsKilled) {
  LockstepRun job(words({"sh", "-c", "echo ready $RANK $$; exec sleep 1000"}));
  job.rank_pid(0);
  job.rank_pid(1);
  job.send(SIGKILL);
  job.wait();
  EXPECT_THAT(job.survivors(), testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep::e2e
