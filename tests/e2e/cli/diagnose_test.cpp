// SPDX-License-Identifier: Apache-2.0
// `lockstep env|estimate-memory|test|completion|man`, and the help of every command.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kLockstep = LOCKSTEP_BIN_DIR "/lockstep";
const std::string kModel =
    LOCKSTEP_SOURCE_DIR "/tests/golden/estimate_memory/convolutions.safetensors";

/// Returns the words of every command, from the completion script.
std::vector<std::vector<std::string>> all_commands() {
  const Outcome script = run_lockstep({"completion", "bash"});
  const std::string function = "_lockstep_options() {";
  const size_t begin = script.out.find(function);
  const std::string table = script.out.substr(begin, script.out.find("esac", begin) - begin);
  std::vector<std::vector<std::string>> commands;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    const size_t end = line.find(") echo ");
    if (end == std::string::npos) {
      continue;
    }
    std::string path = line.substr(0, end);
    std::erase_if(path, [](char c) { return c == '\'' || c == '"'; });
    std::istringstream words(path);
    commands.emplace_back(
        std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  return commands;
}

TEST(CommandHelp, EveryCommandHasExamplesAndExitCodes) {
  const std::vector<std::vector<std::string>> commands = all_commands();
  EXPECT_GE(commands.size(), 15U);
  for (std::vector<std::string> words : commands) {
    const bool root = words.empty();
    const bool only_commands = words == std::vector<std::string>{"checkpoint"};
    words.emplace_back("--help");
    const Outcome outcome = run_lockstep(words);
    EXPECT_EQ(outcome.code, 0) << words.front();
    EXPECT_EQ(outcome.err, "");
    if (!root && !only_commands) {
      EXPECT_THAT(outcome.out, AllOf(HasSubstr("Examples:\n  "), HasSubstr("Exit code: ")))
          << testing::PrintToString(words);
    }
  }
}

/// Loading libtorch is what would make `--help` slow.
TEST(CommandHelp, DoesNotLoadLibtorch) {
  LockstepRun help({"--help"});
  EXPECT_EQ(help.wait(std::chrono::seconds(5)).code, 0);
  const Outcome libraries = run_command({"ldd", kLockstep});
  ASSERT_EQ(libraries.code, 0);
  // An address may have c10 in it.
  EXPECT_THAT(libraries.out, AllOf(Not(HasSubstr("libtorch")), Not(HasSubstr("libc10"))));
}

TEST(CommandHelp, VersionIsOneLine) {
  EXPECT_THAT(run_lockstep({"--version"}).out, testing::MatchesRegex("lockstep [0-9.]+\n"));
}

TEST(CommandHelp, NothingIsColoured) {
  for (const char* variable : {"CLICOLOR_FORCE=1", "NO_COLOR=1", "TERM=dumb"}) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"--help"}, {"env"}, {"estimate-memory", kModel}, {"nonsense"}}) {
      const Outcome outcome = run_lockstep(words, {variable});
      EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr("\x1b["))) << variable;
    }
  }
}

TEST(EnvCommand, IsABlockAndJson) {
  const Outcome outcome = run_lockstep({"env"}, {"LOCKSTEP_JOB_TOKEN=hush", "OMP_NUM_THREADS=3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          StartsWith("lockstep:     "),
          HasSubstr("\ncpu:          "),
          HasSubstr("127.0.0.1"),
          HasSubstr("OMP_NUM_THREADS=3\n"),
          HasSubstr("LOCKSTEP_JOB_TOKEN=(hidden)\n"),
          Not(HasSubstr("hush"))));
  const Json json = json_of({"env"}, 0, "lockstep.env/1");
  EXPECT_GE(json["cpu"]["allowed"], 1);
  EXPECT_GT(json["memory"]["bytes"], 0);
}

TEST(EnvCommand, WorksWhereNoProgramIsFound) {
  const Outcome outcome = run_lockstep({"env"}, {"PATH=/nonexistent"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(EnvCommand, ShowsTheOriginOfEachSetting) {
  const Outcome outcome = run_lockstep({"env", "--explain"}, {"LOCKSTEP_MAX_RESTARTS=2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("max_restarts +2 +LOCKSTEP_MAX_RESTARTS\n"));
  EXPECT_THAT(
      run_lockstep({"env"}, {"LOCKSTEP_MAX_RESTARTS=2"}).out,
      HasSubstr("config:       max_restarts=2 (LOCKSTEP_MAX_RESTARTS)\n"));
  json_of({"env", "--explain"}, 0, "lockstep.env.explain/1");
  const Outcome wrong = run_lockstep({"env", "--explain"}, {"LOCKSTEP_MAX_RESTARTS=some"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("LOCKSTEP_MAX_RESTARTS"));
}

TEST(EnvCommand, RefusesArguments) {
  const Json json = json_of({"env", "x"}, 2, "lockstep.env/1");
  EXPECT_THAT(
      json["error"].get<std::string>(),
      HasSubstr("unexpected argument 'x'; expected no arguments"));
}

TEST(EstimateMemoryCommand, ReadsAFileAndSaysItInTablesAndJson) {
  const Outcome outcome = run_lockstep({"estimate-memory", kModel, "--ranks", "2,4"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("755 parameters, 9 numbers in buffers"),
          HasSubstr("2 ranks on 1 host"),
          HasSubstr("4 ranks on 1 host"),
          HasSubstr("Not included: activations")));
  const Json json = json_of({"estimate-memory", kModel}, 0, "lockstep.estimate-memory/1");
  EXPECT_EQ(json["dtypes"][0]["training"]["most_bytes"], 12240);
  EXPECT_EQ(json["zero"].size(), 8U);
}

TEST(EstimateMemoryCommand, RefusesInvalidArguments) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> calls = {
      {{}, "the model is missing"},
      {{kModel, "--parameters", "7b"}, "the model is missing"},
      {{"--parameters", "7x"}, "invalid value '7x' for --parameters"},
      {{"--parameters", "7b", "--ranks", "3", "--hosts", "2"},
       "cannot be divided equally among 2 hosts"},
      {{"--parameters", "7b", "--ranks", "0"}, "invalid value '0' for --ranks"},
      {{"--parameters", "7b", "--dtypes", "float33"}, "did you mean 'float32'?"},
      {{"--parameters", "7b", "--optimizer", "adafactor"}, "depends on the shapes"},
      {{"--parameters", "7b", "--optimizer", "adagard"}, "adagard"},
      {{kModel, "--largest-layer", "5"}, "--largest-layer needs --parameters"},
      {{"/no/such/file"}, "does not exist"}};
  for (const auto& [rest, why] : calls) {
    std::vector<std::string> words = {"estimate-memory"};
    words.insert(words.end(), rest.begin(), rest.end());
    const Json json = json_of(words, 2, "lockstep.estimate-memory/1");
    EXPECT_THAT(json["error"].get<std::string>(), HasSubstr(why));
  }
  const TestFolder folder;
  std::ofstream(folder / "torn.safetensors") << "abc";
  json_of(
      {"estimate-memory", (folder / "torn.safetensors").string()}, 1, "lockstep.estimate-memory/1");
}

/// A copy of `lockstep` in its own folder, beside a program that replaces lockstep_selftest.
class MadeUpSelfTest : public testing::Test {
 protected:
  MadeUpSelfTest() { fs::copy_file(kLockstep, folder_ / "lockstep"); }
  Outcome run(const std::string& script, const std::vector<std::string>& more = {}) const {
    std::ofstream(folder_ / "lockstep_selftest") << "#!/bin/sh\n" << script;
    fs::permissions(folder_ / "lockstep_selftest", fs::perms::owner_all);
    std::vector<std::string> words = {(folder_ / "lockstep").string(), "test"};
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words, {"TMPDIR=" + folder_.path().string()});
  }
  /// Returns the folders that runs have left.
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.is_directory()) {
        names.push_back(entry.path());
      }
    }
    return names;
  }
  TestFolder folder_;
};

TEST_F(MadeUpSelfTest, AFailureEndsWithOneAndItsMessage) {
  const Outcome outcome =
      run("[ $RANK = 0 ] || exit 0\n"
          "echo '  FAIL  ring'\n"
          "echo '{\"name\":\"ring\",\"ok\":false,\"failures\":[{\"rank\":1,\"message\":\"x: got 1, "
          "expected 2\"}]}' >$1/checks.jsonl\n",
          {"--json"});
  EXPECT_EQ(outcome.code, 1);
  const Json json = Json::parse(outcome.out.substr(outcome.out.find("\n{") + 1));
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["checks"][0]["failures"][0]["message"], "x: got 1, expected 2");
  EXPECT_THAT(left(), testing::IsEmpty());
}

TEST_F(MadeUpSelfTest, ARankThatDiesIsAFailure) {
  const Outcome outcome = run("[ $RANK = 0 ] || kill -9 $$\nsleep 600\n");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("(exit code 137)"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 1"));
  EXPECT_THAT(left(), testing::IsEmpty());
}

TEST_F(MadeUpSelfTest, WithoutTheProgramNamesTheSearchedPaths) {
  const Outcome outcome = run_command({(folder_ / "lockstep").string(), "test"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err,
      AllOf(HasSubstr((folder_ / "lockstep_selftest").string()), HasSubstr("libexec/lockstep")));
}

TEST(SelfTestCommand, HoldsOnThisMachine) {
  const Outcome outcome = run_lockstep({"test"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* check :
       {"all_reduce",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "broadcast",
        "gather",
        "scatter",
        "send_recv",
        "sharding",
        "random",
        "data_parallel",
        "checkpoint"}) {
    EXPECT_THAT(outcome.out, ContainsRegex("  ok    " + std::string(check) + " +[0-9.]+ ms"));
  }
  EXPECT_THAT(outcome.out, HasSubstr("lockstep test of 2 ranks: 17 checks passed\n"));
}

TEST(SelfTestCommand, LoadsTheLibraryForCudaThatLiesBesideTheOneForCpus) {
  const std::string libraries = run_command({"ldd", LOCKSTEP_BIN_DIR "/lockstep_selftest"}).out;
  const std::string arrow = "libtorch_cpu.so => ";
  const size_t begin = libraries.find(arrow) + arrow.size();
  const TestFolder folder;
  fs::create_symlink(
      libraries.substr(begin, libraries.find(' ', begin) - begin), folder / "libtorch_cpu.so");
  std::ofstream(folder / "libtorch_cuda.so") << "not a library";
  const Outcome outcome =
      run_lockstep({"test", "-n", "1"}, {"LD_LIBRARY_PATH=" + folder.path().string()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(
      outcome.out + outcome.err, HasSubstr((folder / "libtorch_cuda.so: file too short").string()));
}

TEST(SelfTestCommand, SaysTheSameAsJsonForAnyNumberOfRanks) {
  const Json json = json_of({"test", "-n", "3"}, 0, "lockstep.test/1");
  EXPECT_EQ(json["ranks"], 3);
  EXPECT_EQ(json["checks"].size(), 17U);
  for (const Json& check : json["checks"]) {
    EXPECT_EQ(check["ok"], true) << check;
  }
}

TEST(ShellFiles, AreAcceptedByTheirReaders) {
  const TestFolder folder;
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Outcome script = run_lockstep({"completion", shell});
    EXPECT_EQ(script.code, 0) << script.err;
    const std::string file = (folder / shell).string();
    std::ofstream(file) << script.out;
    if (run_command({"sh", "-c", "command -v " + shell}).code == 0) {
      const Outcome read = run_command({shell, "-n", file});
      EXPECT_EQ(read.code, 0) << shell << ": " << read.err;
      EXPECT_EQ(read.err, "");
    }
  }
  std::ofstream((folder / "lockstep.1").string()) << run_lockstep({"man"}).out;
  if (run_command({"sh", "-c", "command -v man"}).code == 0) {
    const Outcome page = run_command(
        {"man", "-l", "--warnings", "-E", "UTF-8", "-Tutf8", (folder / "lockstep.1").string()},
        {"LC_ALL=C.UTF-8", "MANWIDTH=120"});
    EXPECT_EQ(page.code, 0);
    EXPECT_EQ(page.err, "");
  }
}

TEST(ShellFiles, BashCompletesTheRealCommands) {
  const std::string script =
      "source <(" + kLockstep +
      " completion bash); COMP_WORDS=(lockstep estimate-memory --optimizer adamw); COMP_CWORD=3; "
      "_lockstep; echo \"${COMPREPLY[@]}\"";
  EXPECT_EQ(run_command({"bash", "-c", script}).out, "adamw\n");
}

TEST(ShellFiles, AShellThatIsNotNamedIsAskedFor) {
  const Outcome outcome = run_lockstep({"completion"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("expected bash, zsh or fish"));
}

}  // namespace
}  // namespace lockstep::e2e
