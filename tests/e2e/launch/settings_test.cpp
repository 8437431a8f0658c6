// SPDX-License-Identifier: Apache-2.0
// Flag before environment before file: what the real `lockstep launch` starts.
#include <array>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/launch_harness.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LaunchSettings : public testing::Test {
 protected:
  Outcome launch_with(
      const std::string& file,
      const std::vector<std::string>& flags,
      std::vector<std::string> variables = {}) {
    const std::string path = (folder_ / "config.yaml").string();
    std::ofstream(path) << file;
    variables.push_back("LOCKSTEP_CONFIG_FILE=" + path);
    std::vector<std::string> words = {"launch"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(
        words.end(),
        {"sh",
         "-c",
         "echo $RANK of $WORLD_SIZE, $ACCELERATE_MIXED_PRECISION $OMP_NUM_THREADS $GREETING"});
    return run_lockstep(words, variables);
  }

  TestFolder folder_;
};

constexpr const char* kFile =
    "num_processes: 2\n"
    "mixed_precision: no\n"
    "num_cpu_threads_per_process: 3\n"
    "rank_prefix: true\n"
    "env:\n"
    "  GREETING: from the file\n";

TEST_F(LaunchSettings, ComeFromTheFile) {
  const Outcome outcome = launch_with(kFile, {});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("[rank 0] 0 of 2, no 3 from the file\n"),
          HasSubstr("[rank 1] 1 of 2, no 3 from the file\n")));
}

TEST_F(LaunchSettings, OfTheEnvironmentComeBeforeTheFile) {
  const Outcome outcome =
      launch_with(kFile, {}, {"LOCKSTEP_NUM_PROCESSES=1", "LOCKSTEP_MIXED_PRECISION=bf16"});
  EXPECT_EQ(outcome.out, "[rank 0] 0 of 1, bf16 3 from the file\n") << outcome.err;
}

TEST_F(LaunchSettings, OfFlagsComeBeforeAll) {
  const Outcome outcome = launch_with(
      kFile,
      {"-n", "1", "--mixed-precision", "fp16", "--threads-per-rank", "1", "--env", "GREETING=hi"},
      {"LOCKSTEP_NUM_PROCESSES=3", "LOCKSTEP_MIXED_PRECISION=bf16"});
  EXPECT_EQ(outcome.out, "[rank 0] 0 of 1, fp16 1 hi\n") << outcome.err;
}

TEST_F(LaunchSettings, OfSeveralHostsYieldToAFlagThatSaysOne) {
  const std::string file = "num_machines: 2\nmachine_rank: 1\nmain_process_ip: 10.0.0.7\n";
  for (const std::vector<std::string>& one :
       {std::vector<std::string>{"--standalone"}, {"--nnodes", "1"}}) {
    std::vector<std::string> flags = {"-n", "1"};
    flags.insert(flags.end(), one.begin(), one.end());
    EXPECT_THAT(launch_with(file, flags).out, HasSubstr("0 of 1,"));
  }
  // Whether a rank has a place is asked of what all of them say together.
  const Outcome outcome = launch_with(
      "",
      {"-n", "1", "--nnodes", "2", "--master-addr", "node0", "--dry-run"},
      {"LOCKSTEP_MACHINE_RANK=1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(LaunchSettings, OfMachinesYieldToAHostfile) {
  const std::string hosts = (folder_ / "hosts").string();
  std::ofstream(hosts) << "localhost slots=1\n";
  const Outcome outcome = launch_with("num_machines: 2\nhostfile: " + hosts + "\n", {});
  EXPECT_THAT(outcome.out, HasSubstr("0 of 1,")) << outcome.err;
}

TEST_F(LaunchSettings, AreNumbersInFlagsAsInFiles) {
  for (const auto& [flag, value, hint] :
       {std::array{"--max-restarts", "010", "; write 10"},
        std::array{"--timeout", "nan", "expected seconds from"},
        std::array{"--master-port", "0x50", "; write 80"}}) {
    const Outcome outcome = launch_with("", {"-n", "1", flag, value});
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(flag), HasSubstr(value), HasSubstr(hint)));
  }
}

TEST_F(LaunchSettings, ThatAreWrongAreRefusedWithTheirPlace) {
  const Outcome outcome = launch_with("num_procesess: 2\n", {"-n", "1"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err, AllOf(HasSubstr("config.yaml:1:1"), HasSubstr("did you mean 'num_processes'?")));
  EXPECT_EQ(outcome.out, "");
}

TEST_F(LaunchSettings, OfAnotherFileAreChosenByAFlag) {
  const std::string other = (folder_ / "other.yaml").string();
  std::ofstream(other) << "num_processes: 1\n";
  const Outcome outcome = launch_with(kFile, {"--config-file", other});
  EXPECT_THAT(outcome.out, HasSubstr("0 of 1,")) << outcome.err;
}

}  // namespace
}  // namespace lockstep::e2e
