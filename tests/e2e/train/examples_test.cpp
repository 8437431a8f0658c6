// SPDX-License-Identifier: Apache-2.0
//
// The example programs, started as users do.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBin = LOCKSTEP_BIN_DIR;
const std::string kText = std::string(LOCKSTEP_SOURCE_DIR) + "/LICENSE";
const std::string kOneThread = "OMP_NUM_THREADS=1";

/// Returns the JSON object in the last line of the program's output.
nlohmann::json last_line(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const size_t end = outcome.out.find_last_not_of('\n');
  const size_t begin = outcome.out.rfind('\n', end);
  return nlohmann::json::parse(outcome.out.substr(begin + 1, end - begin));
}

class Examples : public ::testing::Test {
 protected:
  nlohmann::json run(
      int ranks,
      const std::string& name,
      const std::string& program,
      std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), kBin + "/" + program);
    arguments.insert(arguments.end(), {"--json", "--output", (folder_.path() / name).string()});
    if (ranks == 1) {
      return last_line(run_command(arguments, {kOneThread}));
    }
    return last_line(run_lockstep(launch(std::to_string(ranks), arguments), {kOneThread}));
  }
  TestFolder folder_;
};

TEST_F(Examples, AnInvalidOptionIsAnErrorWithTheExpectedValue) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> slips = {
      {{"--batch-size", "x"},
       "error: [char_lm] invalid value 'x' for --batch-size; expected a whole number above 0\n"},
      {{"--epochs", "1.5"}, "invalid value '1.5' for --epochs; expected a whole number above 0\n"},
      {{"--lr", "0"}, "invalid value '0' for --lr; expected a number above 0\n"},
      {{"--steps", "-1"},
       "invalid value '-1' for --steps; expected a whole number of at least 0\n"},
      {{"--dropout", "1"}, "invalid value '1' for --dropout; expected a number from 0 to 0.9\n"},
      {{"--zero", "4"}, "invalid value '4' for --zero; expected a stage from 0 to 3\n"},
      {{"--seed", "x"},
       "invalid value 'x' for --seed; expected a whole number from 0 to 18446744073709551615\n"},
      {{"--bach-size", "8"},
       "unknown argument --bach-size; --help lists the options; did you mean '--batch-size'?\n"}};
  for (const auto& [words, text] : slips) {
    std::vector<std::string> command = {kBin + "/char_lm"};
    command.insert(command.end(), words.begin(), words.end());
    const Outcome outcome = run_command(command, {kOneThread});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(text));
  }
}

TEST_F(Examples, TheDemosLossWithFourAccumulatedBatchesIsThatOfOneFourTimesAsLarge) {
  const auto loss = [&](const std::string& name, int ranks, int batch, int accumulate) {
    return run(ranks,
               name,
               "fashion_mnist",
               {"--epochs",
                "1",
                "--steps",
                "12",
                "--batch-size",
                std::to_string(batch),
                "--accumulate",
                std::to_string(accumulate)})
        .at("loss")
        .get<double>();
  };
  const double whole = loss("whole", 1, 256, 1);
  // The order of additions differs; after 12 updates the difference is about 1e-6.
  EXPECT_NEAR(loss("four", 1, 64, 4), whole, 2e-5);
  EXPECT_NEAR(loss("two_by_two", 2, 64, 2), whole, 2e-5);
}

std::vector<std::string> small_model(std::vector<std::string> more) {
  std::vector<std::string> arguments{
      "--data",
      kText,
      "--prompt",
      "License",
      "--layers",
      "2",
      "--heads",
      "2",
      "--width",
      "32",
      "--context",
      "32",
      "--warmup",
      "5",
      "--sample",
      "40"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_F(Examples, CharLmLearnsOnTwoProcessesInBf16) {
  const nlohmann::json result = run(
      2,
      "learns",
      "char_lm",
      small_model({"--steps", "100", "--batch-size", "8", "--lr", "1e-2", "--precision", "bf16"}));
  EXPECT_EQ(result.at("steps"), 100);
  EXPECT_LT(result.at("loss").get<double>(), 3.2) << "chance is above 4";
}

TEST_F(Examples, CharLmComputesInFloat32OnACpuWithoutBf16Instructions) {
  std::vector<std::string> command = {kBin + "/char_lm", "--json", "--output"};
  command.push_back((folder_.path() / "float32").string());
  const std::vector<std::string> model = small_model({"--steps", "6", "--batch-size", "2"});
  command.insert(command.end(), model.begin(), model.end());
  const Outcome outcome = run_command(command, {kOneThread, "ONEDNN_MAX_CPU_ISA=AVX2"});
  EXPECT_EQ(last_line(outcome).at("precision"), "no");
  EXPECT_THAT(outcome.err, Not(HasSubstr("bf16")));
}

TEST_F(Examples, Bf16OnACpuWithoutItsInstructionsIsWarnedOfByOneProcess) {
  std::vector<std::string> command = {kBin + "/char_lm", "--precision", "bf16", "--output"};
  command.push_back((folder_.path() / "emulated").string());
  const std::vector<std::string> model = small_model({"--steps", "6", "--batch-size", "2"});
  command.insert(command.end(), model.begin(), model.end());
  const Outcome outcome =
      run_lockstep(launch("2", command), {kOneThread, "ONEDNN_MAX_CPU_ISA=AVX2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string warning = "this CPU has no bf16 instructions";
  const size_t first = outcome.err.find(warning);
  ASSERT_NE(first, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(warning, first + 1), std::string::npos) << outcome.err;
}

TEST_F(Examples, CharLmIsTheSameForEverySplitOfItsBatches) {
  const auto loss = [&](const std::string& name, int ranks, int accumulate) {
    return run(ranks,
               name,
               "char_lm",
               small_model(
                   {"--steps",
                    "10",
                    "--batch-size",
                    "4",
                    "--precision",
                    "no",
                    "--dropout",
                    "0",
                    "--accumulate",
                    std::to_string(accumulate)}))
        .at("loss")
        .get<double>();
  };
  const double one = loss("one", 1, 2);
  EXPECT_NEAR(loss("two", 2, 1), one, 2e-5);
}

TEST(GptExample, HasTheSameLossesOnEveryMesh) {
  const std::vector<std::string> program = {
      kBin + "/gpt", "--steps", "20", "--layers", "2", "--head-size", "16", "--context", "48"};
  const auto alone = [&](std::vector<std::string> more = {}) {
    more.insert(more.begin(), program.begin(), program.end());
    const Outcome outcome = run_command(more, {kOneThread});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("step  20: loss "));
    return outcome.out;
  };
  const auto on_mesh = [&](const std::string& ranks,
                           const std::string& mesh,
                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"launch", "-n", ranks, "--mesh", mesh};
    arguments.insert(arguments.end(), program.begin(), program.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_lockstep(arguments, {kOneThread});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string expected = alone();
  EXPECT_EQ(on_mesh("2", "tp=2"), expected);
  EXPECT_EQ(on_mesh("2", "tp=2", {"--sequence-parallel"}), expected);
  EXPECT_EQ(on_mesh("4", "tp=2", {"--zero", "3"}), expected);
  EXPECT_EQ(on_mesh("2", "cp=2"), expected);
  EXPECT_EQ(on_mesh("4", "sp=2,tp=2"), expected);
  EXPECT_EQ(on_mesh("2", "pp=2"), expected);
  // The layers that both processes compute drop the same values.
  const std::string dropped = alone({"--dropout", "0.2"});
  EXPECT_NE(dropped, expected);
  EXPECT_EQ(on_mesh("2", "tp=2", {"--dropout", "0.2"}), dropped);
}

TEST_F(Examples, EveryStageOfZeroIsBitExactWithDataParallel) {
  const auto loss = [&](const std::string& program, const std::string& stage) {
    const bool text = program == "char_lm";
    const std::vector<std::string> short_run{"--zero", stage, "--steps", "8"};
    return run(2, program + stage, program, text ? small_model(short_run) : short_run).at("loss");
  };
  for (const char* program : {"char_lm", "fashion_mnist"}) {
    const nlohmann::json expected = loss(program, "0");
    // char_lm clips, so norms are sums in another order, and bf16 rounds the difference.
    const double tolerance = std::string(program) == "char_lm" ? 1e-2 : 0;
    for (const char* stage : {"1", "2", "3"}) {
      EXPECT_NEAR(loss(program, stage).get<double>(), expected.get<double>(), tolerance)
          << program << " at stage " << stage;
    }
  }
}

/// The tolerance is 3 % of the final loss (1.2 % was measured, after 120 and after 200 updates).
/// Four processes act as two hosts of two.
TEST_F(Examples, CharLmLearnsAsMuchWithZeroPlusPlus) {
  const auto loss = [&](const std::string& name, const std::vector<std::string>& zero) {
    std::vector<std::string> arguments = small_model(
        {"--zero", "3", "--steps", "120", "--batch-size", "4", "--lr", "3e-3", "--dropout", "0"});
    arguments.insert(arguments.end(), zero.begin(), zero.end());
    return run(4, name, "char_lm", arguments).at("loss").get<double>();
  };
  const double exact = loss("exact", {});
  const double rounded = loss("rounded", {"--zero-plus-plus", "2"});
  EXPECT_LT(exact, 3.2) << "chance is above 4";
  EXPECT_NEAR(rounded, exact, 0.03 * exact);
  EXPECT_NE(rounded, exact) << "nothing was rounded";
}

TEST_F(Examples, CharLmResumesFromItsCheckpoint) {
  const auto run_to = [&](const std::string& name, const std::string& more) {
    std::vector<std::string> arguments = small_model(
        {"--steps", "8", "--evaluate-every", "4", "--batch-size", "4", "--dropout", "0.1"});
    if (!more.empty()) {
      arguments.push_back(more);
    }
    return run(1, name, "char_lm", arguments);
  };
  const nlohmann::json unbroken = run_to("unbroken", "");
  EXPECT_EQ(unbroken.at("steps_now"), 8);
  std::filesystem::rename(folder_.path() / "unbroken", folder_.path() / "broken");
  std::filesystem::remove_all(folder_.path() / "broken" / "checkpoints" / "checkpoint_1");
  const nlohmann::json resumed = run_to("broken", "--resume");
  EXPECT_EQ(resumed.at("steps_now"), 4) << "the other four were done before";
  EXPECT_EQ(resumed.at("loss"), unbroken.at("loss"));
  const nlohmann::json finished = run_to("broken", "--resume");
  EXPECT_EQ(finished.at("steps_now"), 0);
  EXPECT_EQ(finished.at("loss"), unbroken.at("loss"));
}

TEST_F(Examples, SayWhyATextIsInvalid) {
  const Outcome outcome = run_command(
      {kBin + "/char_lm", "--data", "/nowhere", "--output", (folder_.path() / "x").string()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--data FILE"));
}

}  // namespace
}  // namespace lockstep::e2e
