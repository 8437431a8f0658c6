// SPDX-License-Identifier: Apache-2.0
// Environment, arguments, usage errors and output of `lockstep launch`.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <sstream>
#include <sys/ioctl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/launcher/process/port.h"
#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/launch/test_fixture.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Returns the variables of each rank, as the fixture prints them.
std::map<int, std::map<std::string, std::string>> environments(const std::string& out) {
  std::map<int, std::map<std::string, std::string>> all;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    const size_t equals = line.find('=');
    all[std::stoi(line)][line.substr(colon + 2, equals - colon - 2)] = line.substr(equals + 1);
  }
  return all;
}

constexpr int kPipeBytes = 65536;  // What a pipe holds by default.

TEST(LaunchEnvironment, EachRankFindsTorchrunsVariables) {
  const Outcome outcome = run_lockstep(
      launch("3", {kFixture, "environment"}),
      {"OMPI_COMM_WORLD_RANK=5",
       "SLURM_PROCID=4",
       "TORCHELASTIC_USE_AGENT_STORE=True",
       "KEPT=yes"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  auto all = environments(outcome.out);
  ASSERT_EQ(all.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    auto& variables = all[rank];
    for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) {
      EXPECT_EQ(variables[name], std::to_string(rank)) << name;
    }
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) {
      EXPECT_EQ(variables[name], "3") << name;
    }
    EXPECT_EQ(variables["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(variables["MASTER_PORT"], all[0]["MASTER_PORT"]);
    EXPECT_EQ(variables["TORCHELASTIC_RUN_ID"], all[0]["TORCHELASTIC_RUN_ID"]);
    EXPECT_EQ(variables["KEPT"], "yes");
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK",
          "SLURM_PROCID",
          "TORCHELASTIC_USE_AGENT_STORE",
          "LOCKSTEP_TERMINAL"}) {
      EXPECT_EQ(variables.count(name), 0U) << name;
    }
  }
}

TEST(LaunchEnvironment, ThreadsAreDistributedAndReportedOnce) {
  const Outcome shared =
      run_lockstep(launch("2", {"--threads-per-rank", "3", kFixture, "environment"}));
  EXPECT_THAT(
      shared.err, ContainsRegex("^lockstep: 2 ranks with 3 threads each on [0-9]+ cores?\n$"));
  EXPECT_EQ(environments(shared.out)[1]["OMP_NUM_THREADS"], "3");
  const Outcome given = run_lockstep(launch("2", {kFixture, "environment"}), {"OMP_NUM_THREADS=5"});
  EXPECT_THAT(given.err, HasSubstr("OMP_NUM_THREADS=5 from the environment"));
  EXPECT_EQ(environments(given.out)[1]["OMP_NUM_THREADS"], "5");
  EXPECT_THAT(run_lockstep(launch("2", {"--quiet", kFixture, "environment"})).err, IsEmpty());
}

TEST(LaunchEnvironment, OnlyRankZeroReadsStdin) {
  const Outcome outcome = run_lockstep(launch("2", {kFixture, "copy"}), {}, "some input\n");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("0 read some input\n"),
          HasSubstr("0 is done\n"),
          HasSubstr("1 is done\n"),
          Not(HasSubstr("1 read"))));
}

TEST(LaunchEnvironment, RankZeroGetsTheWidthOfTheTerminal) {
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_EQ(::grantpt(master.get()), 0);
  ASSERT_EQ(::unlockpt(master.get()), 0);
  const std::string terminal = ::ptsname(master.get());
  const UniqueFd slave(::open(terminal.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  winsize size{.ws_row = 40, .ws_col = 132, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(master.get(), TIOCSWINSZ, &size), 0);
  const std::string command =
      "exec " LOCKSTEP_BIN_DIR "/lockstep launch -n 2 " + kFixture + " environment 2>" + terminal;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string out;
  std::array<char, 4096> chunk;
  for (size_t got = 0; (got = ::fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) {
    out.append(chunk.data(), got);
  }
  EXPECT_EQ(::pclose(pipe), 0);
  auto all = environments(out);
  EXPECT_EQ(all[0]["LOCKSTEP_TERMINAL"], "132");
  EXPECT_EQ(all[1].count("LOCKSTEP_TERMINAL"), 0U);
}

TEST(LaunchProgram, ArgumentsAfterItAreItsOwn) {
  const std::vector<std::string> own = {"-n", "7", "--help", "--quiet", "a b", "", "--", "-x"};
  std::vector<std::string> words = {kFixture, "arguments"};
  words.insert(words.end(), own.begin(), own.end());
  const std::string expected = "<-n><7><--help><--quiet><a b><><--><-x>\n";
  EXPECT_EQ(run_lockstep(launch("1", words)).out, expected);
  words.insert(words.begin(), "--");
  EXPECT_EQ(run_lockstep(launch("1", words)).out, expected);
}

TEST(LaunchProgram, AProgramThatCannotRunIsNamedBeforeAnythingStarts) {
  const Outcome missing = run_lockstep(launch("2", {"/no/such/program"}));
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("/no/such/program"), Not(HasSubstr("ranks x"))));
  const Outcome not_executable = run_lockstep(launch("2", {"/etc/passwd"}));
  EXPECT_EQ(not_executable.code, 2);
  EXPECT_THAT(not_executable.err, AllOf(HasSubstr("/etc/passwd"), HasSubstr("Permission denied")));
}

TEST(LaunchProgram, APythonScriptIsRunByPython) {
  const std::string script = testing::TempDir() + "/lockstep_launch_test.py";
  std::ofstream(script) << "import os, sys\nprint(os.environ['RANK'], sys.argv[1:])\n";
  const Outcome outcome = run_lockstep(launch("2", {script, "-n", "3"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("0 ['-n', '3']\n"), HasSubstr("1 ['-n', '3']\n")));
  ::unlink(script.c_str());
}

TEST(LaunchUsage, NonsenseIsRefusedWithTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"launch", "-n", "abc", "true"}, "invalid value 'abc' for -n"},
      {{"launch", "-n", "0", "true"}, "invalid value '0' for -n"},
      {{"launch", "-n", "-3", "true"}, "invalid value '-3' for -n"},
      {{"launch", "-n", "100000", "true"}, "--force"},
      {{"launch", "true"}, "-n"},
      {{"launch", "-n", "2"}, "the program is missing"},
      {{"launch", "-n", "2", "--grace-second", "3", "true"}, "did you mean '--grace-seconds'?"},
      {{"launch", "-n", "2", "--master-port", "70000", "true"}, "70000"},
      {{"launch", "-n", "2", "--threads-per-rank", "two", "true"}, "two"},
      {{"lunch"}, "did you mean 'launch'?"},
      {{}, "launch"}};
  for (const auto& [words, message] : cases) {
    const Outcome outcome = run_lockstep(words);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(words);
    EXPECT_THAT(outcome.err, HasSubstr(message)) << testing::PrintToString(words);
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST(LaunchUsage, HelpAndVersionGoToStdout) {
  EXPECT_THAT(
      run_lockstep({"--version"}).out, ContainsRegex("^lockstep [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
  EXPECT_THAT(run_lockstep({"--help"}).out, HasSubstr("launch"));
  const Outcome outcome = run_lockstep({"launch", "--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("Examples:"), HasSubstr("--grace-seconds")));
}

TEST(LaunchUsage, EveryNameOfTheNumberOfRanksWorks) {
  for (const char* name :
       {"--nproc-per-node", "--nproc_per_node", "--num-processes", "--num_processes"}) {
    const Outcome outcome =
        run_lockstep({"launch", name, "2", "--quiet", "sh", "-c", "echo $WORLD_SIZE"});
    EXPECT_EQ(outcome.out, "2\n2\n") << name;
  }
}

TEST(LaunchUsage, ABusyPortIsRefusedByNumber) {
  const launcher::PortReservation held = launcher::PortReservation::any();
  const std::string port = std::to_string(held.port());
  const Outcome outcome = run_lockstep(launch("2", {"--master-port", port, "true"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr(port));
}

TEST(LaunchOutput, LinesOfTwoRanksNeverMix) {
  const Outcome outcome = run_lockstep(launch("2", {kFixture, "lines", "10000", "300"}));
  ASSERT_EQ(outcome.code, 0);
  std::array<int, 2> next = {0, 0};
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const int rank = line.at(0) - '0';
    ASSERT_TRUE(rank == 0 || rank == 1) << line;
    const std::string letters(300, rank == 0 ? 'a' : 'b');
    ASSERT_EQ(
        line, std::to_string(rank) + " " + std::to_string(next[rank]++) + " " + letters + " end");
  }
  EXPECT_EQ(next[0], 10000);
  EXPECT_EQ(next[1], 10000);
}

TEST(LaunchOutput, LinesCanCarryTheirRank) {
  const Outcome outcome = run_lockstep(
      launch("2", {"--rank-prefix", "sh", "-c", "echo out $RANK; echo err $RANK >&2"}));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[rank 0] out 0\n"), HasSubstr("[rank 1] out 1\n")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("[rank 0] err 0\n"), HasSubstr("[rank 1] err 1\n")));
}

TEST(LaunchOutput, AJobWithoutAReaderEnds) {
  LockstepRun run(launch("2", {"yes"}));
  run.await_out("y\n");
  run.stop_reading_out();
  EXPECT_EQ(run.wait().code, 128 + SIGPIPE);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchOutput, AReaderThatStallsDoesNotMakeTheLauncherDeaf) {
  LockstepRun run(launch("2", {"--grace-seconds", "0.1", "sh", "-c", "echo now >&2; yes"}));
  run.await_err("now");
  while (run.waiting_out_bytes() < kPipeBytes) {
    ::usleep(1000);
  }
  run.send(SIGTERM);
  run.await_err("SIGTERM received");
  while (run.rank_count() > 0) {
    ::usleep(1000);
  }
  run.send(SIGTERM);  // The launcher only waits for its reader now; a signal ends this wait.
  EXPECT_EQ(run.wait().code, 143);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::e2e
