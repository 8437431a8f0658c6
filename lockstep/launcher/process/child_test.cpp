// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/child.h"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string read_all(const UniqueFd& fd) {
  std::string all;
  std::array<char, 4096> chunk;
  for (;;) {
    pollfd item{.fd = fd.get(), .events = POLLIN, .revents = 0};
    ::poll(&item, 1, -1);
    const ssize_t size = ::read(fd.get(), chunk.data(), chunk.size());
    if (size <= 0) {
      return all;
    }
    all.append(chunk.data(), static_cast<size_t>(size));
  }
}

Program shell(const std::string& script) {
  return {"/bin/sh", {"sh", "-c", script}, false};
}

struct Outcome {
  std::string out;
  std::string err;
  int status = 0;
};

Outcome outcome_of(const Program& program, const std::vector<std::string>& environment = {}) {
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Child child = start_child(
      {.program = &program, .environment = environment, .stdin_fd = nothing.get()}, "rank 0 of 1");
  Outcome outcome = {read_all(child.out), read_all(child.err)};
  ::waitpid(child.pid, &outcome.status, 0);
  return outcome;
}

class StartChild : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/lockstep-child-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string script(const std::string& text) const {
    std::string path = folder_ + "/script";
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0755);
    return path;
  }
  std::string folder_;
};

TEST_F(StartChild, GivesArgumentsEnvironmentAndStreams) {
  const Outcome outcome = outcome_of(shell("echo $RANK; echo oops >&2; exit 3"), {"RANK=7"});
  EXPECT_EQ(outcome.out, "7\n");
  EXPECT_EQ(outcome.err, "oops\n");
  EXPECT_EQ(WEXITSTATUS(outcome.status), 3);
}

TEST_F(StartChild, LeadsItsOwnProcessGroup) {
  EXPECT_EQ(
      outcome_of(shell("test $(ps -o pgid= -p $$) = $$ && echo yes"), {"PATH=/usr/bin:/bin"}).out,
      "yes\n");
}

TEST_F(StartChild, InheritsNoDescriptorOfOurs) {
  constexpr int kOurs = 200;
  const UniqueFd ours(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, kOurs));
  // Every pipe of the child has a number between the first free one and this one.
  std::string script;
  for (int fd = 3; fd <= ours.get(); ++fd) {
    if (fd == ours.get() || ::fcntl(fd, F_GETFD) < 0) {
      script +=
          "test -e /proc/$$/fd/" + std::to_string(fd) + " && echo " + std::to_string(fd) + "\n";
    }
  }
  EXPECT_EQ(outcome_of(shell(script)).out, "");
}

TEST_F(StartChild, HasDefaultSignalHandlers) {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  ::signal(SIGHUP, SIG_DFL);  // nohup, under which tests may run, ignores it.
  ::signal(SIGPIPE, SIG_IGN);
  const Outcome outcome =
      outcome_of(shell("grep -E 'SigBlk|SigIgn' /proc/self/status"), {"PATH=/usr/bin:/bin"});
  ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  EXPECT_EQ(outcome.out, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(StartChild, KeepsAnIgnoredHangup) {
  ::signal(SIGHUP, SIG_IGN);
  const Outcome outcome = outcome_of(shell("kill -HUP $$; echo alive"));
  ::signal(SIGHUP, SIG_DFL);
  EXPECT_EQ(outcome.out, "alive\n");
}

TEST_F(StartChild, TellsItsEndThroughThePidfd) {
  const Program program = shell("exit 0");
  const Child child = start_child({.program = &program, .environment = {}}, "rank 0 of 1");
  pollfd item{.fd = child.pidfd.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&item, 1, -1), 1);
  ::waitpid(child.pid, nullptr, 0);
}

TEST_F(StartChild, RegistersItsGroupBeforeItsProgramRuns) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read(ends[0]);
  UniqueFd write(ends[1]);
  const Program program = shell("exit 0");
  const Child child = start_child(
      {.program = &program, .environment = {}, .registration_fd = write.get()}, "rank 0 of 1");
  write.reset();
  pid_t registered = 0;
  EXPECT_EQ(
      ::read(read.get(), &registered, sizeof(registered)),
      static_cast<ssize_t>(sizeof(registered)));
  EXPECT_EQ(registered, child.pid);
  EXPECT_EQ(::read(read.get(), &registered, sizeof(registered)), 0)
      << "the program holds the watchdog's pipe";
  ::waitpid(child.pid, nullptr, 0);
}

TEST_F(StartChild, AScriptWithoutAFirstLineIsRunByTheShell) {
  const std::string path = script("echo \"$0 $1\"\n");
  EXPECT_EQ(outcome_of({path, {"script", "arg"}, false}).out, path + " arg\n");
}

TEST_F(StartChild, AProgramForAnotherArchitectureIsNotRunByTheShell) {
  std::string elf(64, '\0');
  elf.replace(
      0,
      7,
      "\x7f"
      "ELF\x02\x01\x01");
  elf[16] = 2;       // e_type: an executable file.
  elf[18] = '\x16';  // e_machine: EM_S390, which runs no tests.
  const Program program = {script(elf + "\necho run by sh\n"), {"train"}, false};
  EXPECT_THAT(
      [&] { start_child({.program = &program, .environment = {}}, "rank 0 of 1"); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr(
              "Exec format error; the file is a program for another architecture (ELF machine 22)"),
          HasSubstr("this host is "))));
}

TEST_F(StartChild, AFailedExecNamesRankFileAndReason) {
  const Program program = {script("#!/no/such/interpreter\n"), {"script"}, false};
  EXPECT_THAT(
      [&] { start_child({.program = &program, .environment = {}}, "rank 3 of 4"); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("rank 3 of 4"),
          HasSubstr(program.path),
          HasSubstr("No such file"),
          HasSubstr("interpreter"))));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a zombie is left";
}

TEST_F(StartChild, CanBeTiedToCores) {
  const int core = ::sched_getcpu();
  const Program program = shell("grep Cpus_allowed_list /proc/self/status");
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Child child = start_child(
      {.program = &program,
       .environment = {"PATH=/usr/bin:/bin"},
       .stdin_fd = nothing.get(),
       .cores = {core}},
      "rank 0 of 1");
  EXPECT_EQ(read_all(child.out), "Cpus_allowed_list:\t" + std::to_string(core) + "\n");
  ::waitpid(child.pid, nullptr, 0);
}

}  // namespace
}  // namespace lockstep::launcher
