// SPDX-License-Identifier: Apache-2.0
// Jobs of several hosts whose launchers are started by hand. Here they share a machine, and
// communicate over loopback.
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/host/address.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/unique_fd.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kToken = "0123456789abcdef";

/// Two launchers of one job. The end of the test kills them and their ranks.
class Nodes : public testing::Test {
 protected:
  LockstepRun& start(
      int node, const std::vector<std::string>& rest, const std::string& token = kToken) {
    std::vector<std::string> words = node_options(node, port_);
    words.insert(words.end(), rest.begin(), rest.end());
    jobs_.push_back(std::make_unique<LockstepRun>(launch("2", words), variables(token)));
    return *jobs_.back();
  }
  /// Runs both launchers with these options to their end.
  std::array<Outcome, 2> run_both(const std::vector<std::string>& rest) {
    LockstepRun& second = start(1, rest);
    LockstepRun& first = start(0, rest);
    std::array<Outcome, 2> outcomes = {first.wait(), second.wait()};
    expect_nobody_left();
    return outcomes;
  }
  std::vector<std::string> variables(const std::string& token = kToken) const {
    return {"LOCKSTEP_JOB_TOKEN=" + token, "XDG_STATE_HOME=" + folder_.path().string()};
  }
  void expect_nobody_left() {
    for (const auto& job : jobs_) {
      EXPECT_THAT(job->survivors(), IsEmpty());
    }
  }
  std::vector<std::string> training(
      const std::string& fault, std::vector<std::string> options = {}) {
    options.insert(options.end(), {WATCH_FIXTURE, fault});
    return options;
  }

  TestFolder folder_;
  int port_ = free_port();
  std::vector<std::unique_ptr<LockstepRun>> jobs_;
};

TEST_F(Nodes, TrainTogether) {
  const auto [at_first, at_second] = run_both(training(""));
  EXPECT_EQ(at_first.code, 0) << at_first.err;
  EXPECT_EQ(at_second.code, 0) << at_second.err;
  EXPECT_THAT(at_first.out, HasSubstr("trained 4 ranks, master 127.0.0.1"));
}

TEST_F(Nodes, GiveTheirRanksTheirNumbers) {
  const auto [at_first, at_second] = run_both(
      {"sh",
       "-c",
       "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
       "${LOCKSTEP_JOB_TOKEN:-none}"});
  EXPECT_THAT(at_first.out, AllOf(HasSubstr("0 0 4 2 0 none\n"), HasSubstr("1 1 4 2 0 none\n")));
  EXPECT_THAT(at_second.out, AllOf(HasSubstr("2 0 4 2 1 none\n"), HasSubstr("3 1 4 2 1 none\n")));
}

TEST_F(Nodes, AllEndWhenARankOfOneIsKilled) {
  const auto [at_first, at_second] =
      run_both({"sh", "-c", "test $RANK != 3 || kill -9 $$; sleep 60"});
  EXPECT_EQ(at_first.code, 137) << at_first.err;
  EXPECT_EQ(at_second.code, 137) << at_second.err;
  EXPECT_THAT(at_first.err, HasSubstr("rank 3 of 4 was killed by SIGKILL (signal 9)"));
  EXPECT_THAT(at_second.err, HasSubstr("rank 3 on "));
}

TEST_F(Nodes, AllEndWhenALauncherIsKilled) {
  LockstepRun& first = start(0, {LAUNCH_FIXTURE, "hold"});
  LockstepRun& second = start(1, {LAUNCH_FIXTURE, "hold"});
  first.rank_pid(0);
  second.rank_pid(2);
  second.send(SIGKILL);
  const Outcome at_first = first.wait();
  EXPECT_EQ(at_first.code, 1) << at_first.err;
  EXPECT_THAT(at_first.err, AllOf(HasSubstr("the launcher of node 1"), HasSubstr("is lost")));
  second.wait();
  expect_nobody_left();
}

TEST_F(Nodes, PassSignalsOn) {
  LockstepRun& first = start(0, {LAUNCH_FIXTURE, "hold"});
  LockstepRun& second = start(1, {LAUNCH_FIXTURE, "hold"});
  first.rank_pid(0);
  second.rank_pid(2);
  second.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 143);
  EXPECT_EQ(second.wait().code, 143);
  expect_nobody_left();
}

TEST_F(Nodes, RestartTogetherAfterAFailure) {
  const auto [at_first, at_second] =
      run_both(training("kill-once", {"--max-restarts", "1", "--restart-backoff-seconds", "0.01"}));
  EXPECT_EQ(at_first.code, 0) << at_first.err;
  EXPECT_EQ(at_second.code, 0) << at_second.err;
  EXPECT_THAT(at_first.err, HasSubstr("restart 1 of 1"));
  EXPECT_THAT(at_first.out, HasSubstr("trained 4 ranks"));
}

TEST_F(Nodes, AreDiagnosedTogetherWhenARankStalls) {
  // Rank 1 of the first host stops; rank 0 and the ranks of the other host wait for it.
  const auto [at_first, at_second] = run_both(training("stop", {"--stall-timeout", "2"}));
  EXPECT_EQ(at_first.code, 124) << at_first.err;
  EXPECT_THAT(
      at_first.err,
      AllOf(HasSubstr("rank 1 is stopped"), HasSubstr("rank 3      step 5, in all_reduce")));
  EXPECT_EQ(at_second.code, 124);
}

/// Node 0, which checks all ranks, goes on checking after its own have ended.
TEST_F(Nodes, AStoppedRankEndsTheJobThoughNode0sRanksHaveEnded) {
  const auto [at_first, at_second] =
      run_both({"--stall-timeout", "1", "sh", "-c", "test $RANK != 3 || kill -STOP $$"});
  EXPECT_EQ(at_first.code, 124) << at_first.err;
  EXPECT_THAT(
      at_first.err,
      AllOf(HasSubstr("rank 3 of 4 stalled after"), HasSubstr("rank 3 has been stopped")));
  EXPECT_EQ(at_second.code, 124);
}

TEST_F(Nodes, ARankThatEndsBeforeItJoinsIsNamedByNode0) {
  const auto [at_first, at_second] =
      run_both(training("end-before-joining", {"--env", "FAULT_RANK=3"}));
  EXPECT_EQ(at_first.code, 1) << at_first.err;
  EXPECT_THAT(
      at_first.err,
      testing::ContainsRegex(
          "rank 3 of 4 ended with exit code 0 after .*; it ended before it joined the job"));
  EXPECT_EQ(at_second.code, 1);
}

TEST_F(Nodes, ReportTheOthersRanksLikeTheirOwn) {
  const std::vector<std::string> fault_of_rank_3 = {"--env", "FAULT_RANK=3"};
  const auto err_at_node_0 = [&](const std::vector<std::string>& words) {
    return run_both(words)[0].err;
  };
  std::vector<std::string> slow = training("slow", fault_of_rank_3);
  slow.emplace_back("80");
  EXPECT_THAT(
      err_at_node_0(slow),
      testing::ContainsRegex("rank 3 on [^ ]+ is slow: the other ranks spend"));
  EXPECT_THAT(
      err_at_node_0(training("leave", fault_of_rank_3)),
      testing::ContainsRegex("(rank 3 of 4 ended with exit code 0 after .*; its last step was 5|"
                             "rank 3 left the job earlier, after step 5), and rank [0-2] still"));
  EXPECT_THAT(
      err_at_node_0(training("kill", fault_of_rank_3)),
      AllOf(HasSubstr("rank 3 of 4 was killed by SIGKILL"), HasSubstr("lockstep flight")));
}

TEST_F(Nodes, EndWith124OnAllHostsAtTheTimeLimit) {
  const auto [at_first, at_second] =
      run_both(training("reduce", {"--timeout", "1.5", "--max-restarts", "1"}));
  EXPECT_EQ(at_first.code, 124) << at_first.err;
  EXPECT_THAT(
      at_first.err,
      AllOf(HasSubstr("it reached its time limit of 1.5 s"), Not(HasSubstr("restart"))));
  EXPECT_EQ(at_second.code, 124);
}

TEST_F(Nodes, AreKilledAtOnceByASecondSignalToOne) {
  const std::vector<std::string> words = {
      "--grace-seconds",
      "1000",
      "sh",
      "-c",
      "trap '' TERM; echo ready $RANK $$; while :; do sleep 0.1; done"};
  LockstepRun& first = start(0, words);
  LockstepRun& second = start(1, words);
  first.rank_pid(0);
  second.rank_pid(2);
  second.send(SIGTERM);
  first.await_err("SIGTERM received and forwarded");
  second.await_err("SIGTERM received and forwarded");
  second.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 143);
  EXPECT_EQ(second.wait().code, 143);
  expect_nobody_left();
}

TEST_F(Nodes, ASignalBetweenTwoAttemptsEndsThemAll) {
  const std::vector<std::string> words = {
      "--max-restarts", "1", "--restart-backoff-seconds", "1000", "sh", "-c", "exit 3"};
  LockstepRun& first = start(0, words);
  LockstepRun& second = start(1, words);
  first.await_err("restart 1 of 1");
  second.await_err("restart 1 of 1");
  second.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 143);
  EXPECT_EQ(second.wait().code, 143);
}

TEST_F(Nodes, HaveOneRunId) {
  const auto [at_first, at_second] = run_both({"sh", "-c", "echo id=$TORCHELASTIC_RUN_ID"});
  EXPECT_THAT(at_first.out, testing::StartsWith("id="));
  EXPECT_EQ(at_second.out, at_first.out);
}

TEST_F(Nodes, NameAMissingHost) {
  LockstepRun& first = start(0, {"--join-timeout", "1", "true"});
  const Outcome outcome = first.wait();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("node 1 of 2 did not connect to 127.0.0.1 port"));
}

/// Returns the addresses at which sockets of this machine listen at `port`, as in /proc/net/tcp.
std::vector<std::string> listening_at(int port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::string slot, local, remote, state;
      fields >> slot >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state == "0A" && colon != std::string::npos &&
          std::stoi(local.substr(colon + 1), nullptr, 16) == port) {
        found.push_back(local.substr(0, colon));
      }
    }
  }
  return found;
}

TEST_F(Nodes, ListenAtLoopbackAloneForALocalhost) {
  std::vector<std::string> words = node_options(0, port_, "localhost");
  words.emplace_back("true");
  LockstepRun first(launch("1", words), variables());
  while (listening_at(port_).empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_THAT(listening_at(port_), testing::ElementsAre("0100007F"));
  first.send(SIGTERM);
  first.wait();
}

TEST_F(Nodes, RefuseAMasterAddressThatIsNotThisMachines) {
  std::vector<std::string> words = node_options(0, port_, "192.0.2.1");
  words.emplace_back("true");
  const Outcome outcome = run_clean(launch("1", words), variables());
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(HasSubstr("must be an address of this host"), HasSubstr("got '192.0.2.1'")));
}

TEST_F(Nodes, SayThatNode0IsNotThere) {
  const Outcome outcome = start(1, {"--join-timeout", "1", "true"}).wait();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("node 0 could not be reached at 127.0.0.1 port"));
}

/// In Kubernetes names appear after their pods, and may first have the address of a deleted pod.
TEST_F(Nodes, WaitForANameThatAppearsLater) {
  // A private /etc/hosts has first no name, then another machine's address (RFC 5737), then
  // loopback.
  const std::string script =
      "hosts=$1; shift\n"
      ": > $hosts\n"
      "mount --bind $hosts /etc/hosts || exit 77\n"
      "for node in 1 0; do\n"
      "  \"$@\" --node-rank $node sh -c 'echo $RANK of $WORLD_SIZE' & pids=\"$pids $!\"\n"
      "done\n"
      "sleep 1.2; echo 192.0.2.1 later.test > $hosts\n"
      "sleep 1.2; echo 127.0.0.1 later.test > $hosts\n"
      "for pid in $pids; do wait $pid || exit $?; done";
  std::vector<std::string> words = {"--mount"};
  if (::geteuid() != 0) {
    words.push_back("--map-root-user");
  }
  words.insert(
      words.end(),
      {"sh",
       "-c",
       script,
       "sh",
       folder_ / "hosts",
       LOCKSTEP_BIN_DIR "/lockstep",
       "launch",
       "-n",
       "1",
       "--nnodes",
       "2",
       "--master-addr",
       "later.test",
       "--master-port",
       std::to_string(port_)});
  LockstepRun job(words, variables(), "", "/usr/bin/unshare");
  const Outcome outcome = job.wait();
  if (outcome.code == 77 || outcome.err.find("unshare failed") != std::string::npos) {
    GTEST_SKIP() << "this system lends no /etc/hosts of one's own: " << outcome.err;
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("0 of 2"), HasSubstr("1 of 2")));
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("the address 'later.test' cannot be resolved"),
          HasSubstr("retrying for up to 120 s (--join-timeout)")));
}

TEST_F(Nodes, OfAnotherJobAreTurnedAway) {
  LockstepRun& first = start(0, {LAUNCH_FIXTURE, "hold"});
  const Outcome stranger = start(1, {"true"}, "another_token_1234").wait();
  EXPECT_EQ(stranger.code, 2);
  EXPECT_THAT(
      stranger.err, HasSubstr("this job has another token; check that it belongs to the same job"));
  const Outcome second_job = start(0, {"true"}).wait();
  EXPECT_EQ(second_job.code, 2);
  EXPECT_THAT(second_job.err, HasSubstr("another job may use it"));
  LockstepRun& second = start(1, {LAUNCH_FIXTURE, "hold"});
  second.rank_pid(2);
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 143);
  EXPECT_EQ(second.wait().code, 143);
}

TEST_F(Nodes, NeedAToken) {
  const Outcome outcome = start(0, {"true"}, "short").wait();
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err,
      AllOf(HasSubstr("LOCKSTEP_JOB_TOKEN is not a valid token"), HasSubstr("export ")));
}

/// Idle connections and connections with other data stay open all the time.
TEST_F(Nodes, ConnectThroughACrowdOfStrangers) {
  LockstepRun& first = start(0, training(""));
  std::vector<UniqueFd> strangers;
  const Address listener = loopback(port_);
  for (int i = 0; i < 500;) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), listener.get(), listener.length) != 0) {
      continue;  // It does not listen yet.
    }
    if (i % 2 == 0) {
      [[maybe_unused]] const ssize_t sent = ::send(fd.get(), "\x16\x03\x01 hello", 9, MSG_NOSIGNAL);
    }
    strangers.push_back(std::move(fd));
    ++i;
  }
  LockstepRun& second = start(1, training(""));
  const Outcome at_first = first.wait();
  EXPECT_EQ(at_first.code, 0) << at_first.err;
  EXPECT_EQ(second.wait().code, 0);
  EXPECT_THAT(at_first.err, HasSubstr("refused 1 connection at port"));
}

/// A user's start-up file on an unreachable disk can block ssh like this.
TEST(FanOut, DoesNotWaitForALauncherThatNeverAnswersASignal) {
  const TestFolder folder;
  std::ofstream(folder / "hosts") << "elsewhere slots=1\n";
  std::ofstream(folder / "ssh") << "#!/bin/sh\necho connected >&2\nexec sleep 1000\n";
  std::filesystem::permissions(folder / "ssh", std::filesystem::perms::owner_all);
  LockstepRun run(
      {"launch", "--hostfile", folder / "hosts", "--grace-seconds", "0.5", "true"},
      {"PATH=" + folder.path().string() + ":/usr/bin:/bin"});
  run.await_err("connected");
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(
      outcome.err, HasSubstr("ssh to elsewhere has not answered; ending all launchers now"));
}

}  // namespace
}  // namespace lockstep::e2e
