// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's engine in real processes.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;

/// Writes a basic configuration of DeepSpeed and `more`, and returns its path.
std::string seeds_config(const TestFolder& folder, const std::string& more = "") {
  const std::string path = (folder / "ds_config.json").string();
  std::ofstream(path) << R"({
    "train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
    "fp16": {"enabled": true},
    "zero_optimization": true)"
                      << more << "}";
  return path;
}

std::vector<std::string> job(
    const TestFolder& folder, int ranks, const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "launch",
      "-n",
      std::to_string(ranks),
      ENGINE_FIXTURE,
      "--config",
      (folder / "ds_config.json").string(),
      "--checkpoints",
      (folder / "checkpoints").string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> kOneThread = {"OMP_NUM_THREADS=1"};

TEST(Engine, TheSeedsLoopAndFileTrainSaveAndResumeInRealProcesses) {
  const TestFolder folder;
  seeds_config(folder);
  const Outcome first = run_lockstep(job(folder, 2, {"--updates", "6"}), kOneThread);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("ranks 2 sum 2 steps 6 loss"));
  EXPECT_THAT(first.out, HasSubstr("scale 65536"));
  EXPECT_THAT(first.err, HasSubstr("2 ranks are connected (lockstep launch), transport shm"));
  std::ifstream latest(folder / "checkpoints" / "latest");
  std::string name;
  std::getline(latest, name);
  EXPECT_EQ(name, "after_6");
  // Resumes with another number of processes.
  const Outcome more = run_lockstep(job(folder, 1, {"--updates", "9", "--resume"}), kOneThread);
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.out, HasSubstr("ranks 1 sum 1 steps 9"));
}

TEST(Engine, TrainsByTheFileOfTheLaunch) {
  const TestFolder folder;
  const std::string file = seeds_config(folder);
  const Outcome outcome = run_lockstep(
      {"launch",
       "-n",
       "2",
       "--deepspeed-config-file",
       file,
       ENGINE_FIXTURE,
       "--checkpoints",
       (folder / "checkpoints").string(),
       "--updates",
       "2"},
      kOneThread);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("ranks 2 sum 2 steps 2"));
}

TEST(Engine, ARankThatCannotReadTheFileEndsTheJobWithItsPlace) {
  const TestFolder folder;
  const std::string path = seeds_config(folder, ",\n\"gradient_clipp1ng\": 3");
  const Outcome outcome = run_lockstep(job(folder, 2, {}), kOneThread);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("ds_config.json:7:1"));
  EXPECT_THAT(outcome.err, HasSubstr("did you mean 'gradient_clipping'"));
}

TEST(Engine, TheCommsLoggerSumsUpTheProcessesTraffic) {
  const TestFolder folder;
  seeds_config(folder, R"(, "comms_logger": {"enabled": true})");
  const Outcome outcome = run_lockstep(job(folder, 2, {"--summary"}), kOneThread);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("Comm. Op"));
  EXPECT_THAT(outcome.err, HasSubstr("reduce_scatter"));
}

}  // namespace
}  // namespace lockstep::e2e
