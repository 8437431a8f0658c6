// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <signal.h>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFixture = TRAIN_FIXTURE;
const std::string kDemo = std::string(LOCKSTEP_BIN_DIR) + "/fashion_mnist";
const std::string kPython = LOCKSTEP_PYTHON;
const std::string kOneThread = "OMP_NUM_THREADS=1";

/// A folder for the test's files, removed after it.
class TrainTest : public ::testing::Test {
 protected:
  TrainTest() {
    std::string name = (fs::temp_directory_path() / "lockstep_train_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TrainTest() override { fs::remove_all(folder_); }

  /// Runs `arguments` with an output folder of that name, which then has the parameters.
  fs::path train(const std::string& name, std::vector<std::string> command) {
    const fs::path output = folder_ / name;
    fs::create_directories(output);
    command.insert(command.end(), {"--output", output.string()});
    const Outcome outcome = command[0] == "launch" ? run_lockstep(command, {kOneThread})
                                                   : run_command(command, {kOneThread});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return output;
  }

  fs::path folder_;
};

using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

Parameters read(const fs::path& file) {
  const storage::SafetensorsMap opened(file);
  Parameters all;
  for (const std::string& name : opened.names()) {
    all.emplace_back(name, checkpoint::tensor_of(opened, name));
  }
  EXPECT_EQ(all.size(), 8U);
  return all;
}

void expect_equal_bits(const Parameters& a, const Parameters& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].second, b[i].second)) << a[i].first;
  }
}

/// Returns the largest distance of a tensor, relative to the other one's norm.
double distance(const Parameters& a, const Parameters& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double relative =
        (a[i].second - b[i].second).norm().item<double>() / b[i].second.norm().item<double>();
    worst = std::max(worst, relative);
  }
  return worst;
}

TEST_F(TrainTest, FiftyStepsGiveTheSameNumbersInEveryWorld) {
  const fs::path two = train("two", {"launch", "-n", "2", kFixture});
  const Parameters rank_0 = read(two / "rank_0");
  expect_equal_bits(read(two / "rank_1"), rank_0);

  const fs::path slices = train("slices", {kFixture, "--slices", "2"});
  expect_equal_bits(read(slices / "rank_0"), rank_0);

  const fs::path whole = train("whole", {kFixture, "--batch-size", "32"});
  EXPECT_LT(distance(read(whole / "rank_0"), rank_0), 1e-4);
  EXPECT_GT(
      distance(
          rank_0, read(train("fewer", {kFixture, "--steps", "49", "--slices", "2"}) / "rank_0")),
      1e-4)
      << "the measure tells one step from another";

  const fs::path threads = train("threads", {kFixture, "--threads", "3"});
  const fs::path three = train("three", {kFixture, "--slices", "3"});
  for (const char* file : {"thread_0", "thread_1", "thread_2"}) {
    EXPECT_LT(distance(read(threads / file), read(three / "rank_0")), 1e-6) << file;
  }
}

TEST_F(TrainTest, AResumedJobIsBitExactWithTheUnbrokenOne) {
  const fs::path unbroken = train(
      "job",
      {"launch", "-n", "2", kFixture, "--steps", "30", "--dropout", "0.5", "--save-at", "11"});
  const Parameters expected = read(unbroken / "rank_0");
  fs::remove(unbroken / "rank_0");
  fs::remove(unbroken / "rank_1");
  train("job", {"launch", "-n", "2", kFixture, "--steps", "30", "--dropout", "0.5", "--resume"});
  expect_equal_bits(read(unbroken / "rank_0"), expected);
  expect_equal_bits(read(unbroken / "rank_1"), expected);
}

/// Returns the demo's summary, from the last line of its output.
nlohmann::json last_line(const Outcome& outcome) {
  const std::string text = outcome.out.substr(0, outcome.out.find_last_not_of('\n') + 1);
  return nlohmann::json::parse(text.substr(text.find_last_of('\n') + 1));
}

TEST_F(TrainTest, OneBinaryRunsAloneAndUnderEveryLauncher) {
  const auto arguments = [&](std::vector<std::string> command, const std::string& name) {
    command.insert(
        command.end(), {kDemo, "--steps", "3", "--json", "--output", (folder_ / name).string()});
    return command;
  };
  std::vector<std::pair<std::string, Outcome>> outcomes;
  outcomes.emplace_back("alone", run_command(arguments({}, "alone"), {kOneThread}));
  outcomes.emplace_back(
      "lockstep", run_lockstep(arguments({"launch", "-n", "2"}, "lockstep"), {kOneThread}));
  outcomes.emplace_back(
      "mpirun",
      run_command(
          arguments({"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"}, "mpirun"),
          {kOneThread}));
  const bool has_torchrun =
      !kPython.empty() && run_command({kPython, "-c", "import torch.distributed.run"}).code == 0;
  if (has_torchrun) {
    outcomes.emplace_back(
        "torchrun",
        run_command(
            arguments(
                {kPython, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"},
                "torchrun"),
            {kOneThread}));
  }
  for (const auto& [name, outcome] : outcomes) {
    ASSERT_EQ(outcome.code, 0) << name << outcome.err;
    const nlohmann::json result = last_line(outcome);
    EXPECT_EQ(result["steps"], 3) << name;
    EXPECT_GT(result["accuracy"].get<double>(), 0.1) << name;
    EXPECT_GT(result["samples_per_second"].get<double>(), 0) << name;
    EXPECT_THAT(outcome.out, HasSubstr(name == "alone" ? "on 1 process\n" : "on 2 processes\n"))
        << name;
  }
  if (!has_torchrun) {
    GTEST_SKIP()
        << "all passed but torchrun, which needs a Python with torch: LOCKSTEP_PYTHON is none";
  }
}

TEST_F(TrainTest, TheDemoWritesAPictureAndEventsThatTensorboardReads) {
  ASSERT_FALSE(kPython.empty()) << "configure with -DLOCKSTEP_PYTHON=<python with tensorboard>";
  const Outcome demo = run_lockstep(
      {"launch", "-n", "2", kDemo, "--steps", "50", "--output", folder_.string() + "/demo"},
      {kOneThread});
  ASSERT_EQ(demo.code, 0) << demo.err;
  EXPECT_THAT(demo.out, HasSubstr("lockstep report " + folder_.string() + "/demo "));
  const std::string picture = contents(folder_ / "demo" / "mistakes.png");
  // Width and height follow the beginning of the first chunk.
  EXPECT_EQ(
      picture.substr(0, 24),
      std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x05\xca\0\0\x05\xfc", 24));
  const Outcome read = run_command(
      {kPython,
       std::string(LOCKSTEP_SOURCE_DIR) + "/tests/tracking/read_tensorboard.py",
       folder_.string() + "/demo/logs"});
  ASSERT_EQ(read.code, 0) << read.err;
  const nlohmann::json all = nlohmann::json::parse(read.out);
  EXPECT_TRUE(all.at("scalars").contains("train/loss")) << read.out;
  EXPECT_TRUE(all.at("scalars").contains("test/accuracy")) << read.out;
  EXPECT_TRUE(all.at("images").contains("test/mistakes")) << read.out;
  EXPECT_TRUE(all.at("histograms").contains("test/confidence")) << read.out;
  EXPECT_TRUE(all.at("text").contains("test/weakest/text_summary")) << read.out;
  EXPECT_TRUE(all.at("hparams").at("start").contains("lr")) << read.out;
}

TEST_F(TrainTest, AKilledRankEndsTheJobInSecondsWithItsName) {
  LockstepRun run({"launch", "-n", "2", kFixture, "--forever"}, {kOneThread});
  run.await_out("ready", 2);
  run.send_to_rank(1, SIGKILL);
  const Outcome outcome = run.wait(std::chrono::seconds(5));
  EXPECT_EQ(outcome.code, 137);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1 of 2"), HasSubstr("SIGKILL")));
  EXPECT_TRUE(run.survivors().empty());
}

TEST_F(TrainTest, AKilledLauncherLeavesNoRankAlive) {
  LockstepRun run({"launch", "-n", "2", kFixture, "--forever"}, {kOneThread});
  run.await_out("ready", 2);
  run.send(SIGKILL);
  run.wait();
  EXPECT_TRUE(run.survivors().empty());
}

TEST_F(TrainTest, ManyJobsEndWithoutAnError) {
  const char* all = std::getenv("LOCKSTEP_FAULTS");
  const int jobs = all != nullptr && std::string_view(all) == "all" ? 200 : 40;
  for (int i = 0; i < jobs; ++i) {
    const char* end = i % 3 == 0 ? "return" : i % 3 == 1 ? "reduce" : "exit";
    const Outcome outcome = run_lockstep(
        {"launch", "--quiet", "-n", "2", kFixture, "--steps", "0", "--end", end}, {kOneThread});
    ASSERT_EQ(outcome.code, 0) << "run " << i << " ending by " << end << ": " << outcome.err;
    ASSERT_EQ(outcome.err, "") << "run " << i << " ending by " << end;
  }
}

TEST_F(TrainTest, AnExceptionOnOneRankIsTheJobsFailure) {
  const Outcome outcome =
      run_lockstep({"launch", "-n", "2", kFixture, "--steps", "2", "--end", "throw"}, {kOneThread});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("rank 1 of 2"),
          HasSubstr("thrown on purpose"),
          Not(HasSubstr("terminate called"))));
}

TEST_F(TrainTest, NonsenseInTheEnvironmentIsExit2AndNamesTheVariable) {
  for (const auto& [variables, named] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"RANK=abc", "WORLD_SIZE=2"}, "invalid value 'abc' for RANK"},
           {{"RANK=2", "WORLD_SIZE=2"}, "RANK=2 with WORLD_SIZE=2"},
           {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "RANK=1", "WORLD_SIZE=4"},
            "OpenMPI"},
           {{"LOCKSTEP_LOG_LEVEL=loud"}, "LOCKSTEP_LOG_LEVEL"}}) {
    const Outcome outcome = run_command({kFixture, "--steps", "0"}, variables);
    EXPECT_EQ(outcome.code, 2) << named;
    EXPECT_THAT(outcome.err, HasSubstr(named));
  }
}

TEST_F(TrainTest, TheDemoRefusesBadArgumentsAndAUsedFolder) {
  EXPECT_EQ(run_command({kDemo, "--help"}).code, 0);
  EXPECT_EQ(run_command({kDemo, "--epochs", "0"}).code, 2);
  EXPECT_EQ(run_command({kDemo, "--no-such-flag"}).code, 2);
  const Outcome missing =
      run_command({kDemo, "--data", "/nowhere", "--output", folder_.string() + "/a"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("dataset-fashion-mnist"));
  fs::create_directories(folder_ / "used" / "logs");
  const Outcome used = run_command({kDemo, "--output", folder_.string() + "/used"});
  EXPECT_EQ(used.code, 2);
  EXPECT_THAT(used.err, HasSubstr("--resume"));
}

}  // namespace
}  // namespace lockstep::e2e
