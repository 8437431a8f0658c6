// SPDX-License-Identifier: Apache-2.0
// Ctrl-Z and fg for a job that a shell with job control runs on its own terminal, and a
// stopped launcher in a job of several.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/program/test_pty.h"
#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr auto kPatience = 30s;

/// Waits for `done`. Returns false and fails the test after half a minute.
bool await(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  bool is_done = done();
  while (!is_done && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(20ms);
    is_done = done();
  }
  EXPECT_TRUE(is_done);
  return is_done;
}

/// Executes an interactive shell, with job control.
int run_shell() {
  ::setenv("PS1", "prompt> ", 1);
  ::setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
  ::execl("/bin/bash", "bash", "--norc", "--noprofile", "--noediting", "-i", nullptr);
  return 127;
}

/// Counts the letters that each rank repeatedly appends to its file.
class Ticks {
 public:
  std::string script() const {
    return "while :; do printf x >> " + (folder_ / "rank_").string() + "$RANK; sleep 0.05; done";
  }
  uintmax_t of(int rank) const {
    std::error_code none_yet;
    const auto bytes =
        std::filesystem::file_size(folder_ / ("rank_" + std::to_string(rank)), none_yet);
    return none_yet ? 0 : bytes;
  }
  void expect_more(int ranks) const {
    for (int rank = 0; rank < ranks; ++rank) {
      const uintmax_t before = of(rank);
      await([&] { return of(rank) > before; });
    }
  }
  void expect_none_for(std::chrono::milliseconds time, int ranks) const {
    std::vector<uintmax_t> before;
    for (int rank = 0; rank < ranks; ++rank) {
      before.push_back(of(rank));
    }
    std::this_thread::sleep_for(time);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(of(rank), before[static_cast<size_t>(rank)]) << "rank " << rank;
    }
  }

 private:
  TestFolder folder_;
};

TEST(Pause, CtrlZPausesTheRanksAndFgContinuesThem) {
  const Ticks ticks;
  TestPty shell(run_shell, 200);
  shell.type(
      LOCKSTEP_BIN_DIR "/lockstep launch -n 2 --stall-timeout 1 sh -c '" + ticks.script() + "'\n");
  ticks.expect_more(2);
  shell.type("\x1a");
  shell.await("SIGTSTP received; the ranks are paused until");
  shell.await("Stopped");
  ticks.expect_none_for(3s, 2);
  shell.type("fg\n");
  shell.await("the job continues after");
  const auto end = std::chrono::steady_clock::now() + 2s;
  while (std::chrono::steady_clock::now() < end) {
    ticks.expect_more(2);
  }
  shell.type("\x03");
  shell.await("the job ended after SIGINT; exit code 130");
  shell.type("exit $?\n");
  EXPECT_EQ(shell.wait(), 130);
  EXPECT_THAT(shell.shown(), Not(HasSubstr("stalled")));
}

TEST(Pause, KillOfAPausedJobEndsIt) {
  const Ticks ticks;
  TestPty shell(run_shell, 200);
  // `wait -f %1` can return bash's status of the stop, 148, for a job that ends while bash looks.
  shell.type(
      "(trap : TERM; " LOCKSTEP_BIN_DIR "/lockstep launch -n 2 sh -c '" + ticks.script() +
      "'; echo \"its status: $?\")\n");
  ticks.expect_more(2);
  shell.type("\x1a");
  shell.await("Stopped");
  shell.type("kill %1\n");
  shell.await("the job ended after SIGTERM; exit code 143");
  shell.await("its status: 143");
  // bash refuses the first exit if it has not yet seen that the stopped job has ended.
  shell.type("exit\nexit\n");
  shell.wait();
}

/// All limits of the job are shorter than the pause.
TEST(Pause, DoesNotCountTowardsTheTimeOfACollective) {
  const TestFolder folder;
  TestPty shell(run_shell, 200);
  shell.type(
      "XDG_STATE_HOME=" + folder.path().string() +
      " LOCKSTEP_TIMEOUT_MS=4000 " LOCKSTEP_BIN_DIR
      "/lockstep launch -n 2 --stall-timeout 3 --timeout 25 " WATCH_FIXTURE " reduce\n");
  shell.await("ready");
  shell.await("ready");
  std::this_thread::sleep_for(500ms);
  shell.type("\x1a");
  shell.await("Stopped");
  std::this_thread::sleep_for(6s);
  shell.type("fg\n");
  shell.await("the job continues after");
  std::this_thread::sleep_for(1500ms);
  shell.type("\x03");
  shell.await("SIGINT received and forwarded");
  shell.type("\x03");
  shell.await("the job ended after SIGINT");
  shell.type("exit\n");
  shell.wait();
  EXPECT_THAT(
      shell.shown(), Not(AnyOf(HasSubstr("did not call the operation"), HasSubstr("stalled"))));
}

/// Two launchers on this machine, each started by a shell with job control, of two ranks each.
class PausedNodes : public testing::Test {
 protected:
  LockstepRun& start(int node, const std::vector<std::string>& rest) {
    // `wait -f` sometimes returns the status of a stop, so it is not the last.
    std::vector<std::string> words = {
        "-c", R"(set -m; "$0" "$@" & while kill -0 $! 2>/dev/null; do wait -f $!; done; wait $!)"};
    words.emplace_back(LOCKSTEP_BIN_DIR "/lockstep");
    std::vector<std::string> options = node_options(node, port_);
    options.insert(options.end(), {"--stall-timeout", "1", "--save-pid", pid_file(node).string()});
    options = launch("2", options);
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), rest.begin(), rest.end());
    jobs_.push_back(std::make_unique<LockstepRun>(
        words, std::vector<std::string>{"LOCKSTEP_JOB_TOKEN=0123456789abcdef"}, "", "/bin/bash"));
    return *jobs_.back();
  }
  void send(int node, int signal) const {
    pid_t pid = 0;
    std::ifstream(pid_file(node)) >> pid;
    ASSERT_GT(pid, 1);
    ASSERT_EQ(::kill(pid, signal), 0);
  }
  void expect_nobody_left() {
    for (const auto& job : jobs_) {
      EXPECT_THAT(job->survivors(), IsEmpty());
    }
  }

 private:
  std::filesystem::path pid_file(int node) const { return folder_ / std::to_string(node); }

  TestFolder folder_;
  int port_ = free_port();
  std::vector<std::unique_ptr<LockstepRun>> jobs_;
};

TEST_F(PausedNodes, CtrlZAtOneLauncherPausesTheRanksOfAll) {
  for (const int stopped : {0, 1}) {
    const Ticks ticks;
    LockstepRun& first = start(0, {"sh", "-c", ticks.script()});
    LockstepRun& second = start(1, {"sh", "-c", ticks.script()});
    LockstepRun& other = stopped == 0 ? second : first;
    ticks.expect_more(4);
    send(stopped, SIGTSTP);
    other.await_err("SIGTSTP received by another launcher; the job is paused");
    std::this_thread::sleep_for(200ms);
    ticks.expect_none_for(3s, 4);
    send(stopped, SIGCONT);
    other.await_err("the job continues");
    ticks.expect_more(4);
    std::this_thread::sleep_for(2500ms);  // Longer than any limit.
    ticks.expect_more(4);
    send(stopped, SIGTERM);
    EXPECT_EQ(first.wait().code, 143);
    EXPECT_EQ(second.wait().code, 143);
    expect_nobody_left();
  }
}

/// The connection of a stopped launcher stays open and its ranks run, but it neither reads their
/// output nor ends them.
TEST_F(PausedNodes, AStoppedLauncherIsNoticedByTheOtherAndNamed) {
  for (const int stopped : {0, 1}) {
    const Ticks ticks;
    LockstepRun& first = start(0, {"sh", "-c", ticks.script()});
    LockstepRun& second = start(1, {"sh", "-c", ticks.script()});
    ticks.expect_more(4);
    send(stopped, SIGSTOP);
    const Outcome outcome = (stopped == 0 ? second : first).wait();
    EXPECT_EQ(outcome.code, 124) << outcome.err;
    EXPECT_THAT(
        outcome.err,
        testing::ContainsRegex(
            "the job ended because the launcher of node " + std::to_string(stopped) +
            " \\(.+\\) is stopped or hangs: it sent nothing for [0-9.]+ s; exit code 124"));
    send(stopped, SIGCONT);
    EXPECT_EQ((stopped == 0 ? first : second).wait().code, 1);
    expect_nobody_left();
  }
}

}  // namespace
}  // namespace lockstep::e2e
