// SPDX-License-Identifier: Apache-2.0
// `lockstep ds-config` and `lockstep schedule`: output, errors and exit codes.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

const std::string kSeed = R"({
  "train_batch_size": 8,
  "gradient_accumulation_steps": 1,
  "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
  "fp16": {"enabled": true},  // as the seed has it
  "zero_optimization": true,
})";
const std::string kWrong = R"({
  "train_batch_size": 10,
  "gradient_clipp1ng": 3,
  "zero_optimization": {"stage": "4", "elastic": 1},
  "amp": {"enabled": true}
})";

class DsConfigCommands : public testing::Test {
 protected:
  /// Writes each text to a new file, and returns its path.
  std::string file(const std::string& text) {
    const std::string name = "ds_config." + std::to_string(files_++) + ".json";
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).native();
  }

  TestFolder folder_;
  int files_ = 0;
};

TEST_F(DsConfigCommands, CheckShowsEachValueAndItsOrigin) {
  const std::string path = file(kSeed);
  const Outcome outcome = run_lockstep({"ds-config", "check", path, "--world", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr(path + " on 1 rank\n"),
          ContainsRegex("\n  train_batch_size +8 +" + path + ":2:23\n"),
          ContainsRegex(
              "\n  train_micro_batch_size_per_gpu +8 +derived: train_batch_size / 1 rank"),
          ContainsRegex("\n  gradient_clipping +1 +default\n"),
          ContainsRegex("\n  precision +fp16 +" + path + ":5:23\n"),
          ContainsRegex("\n  zero_optimization.stage +1 +" + path + ":6:24\n"),
          HasSubstr("] gradient_clipping is not given, so gradients are clipped to a norm of 1.0"),
          HasSubstr("[" + path + ":6:3] zero_optimization: true is the old form of stage 1")));
}

TEST_F(DsConfigCommands, CheckSaysTheSameAsJson) {
  const Json json =
      json_of({"ds-config", "check", file(kSeed), "--world", "4"}, 0, "lockstep.ds-config.check/1");
  EXPECT_EQ(json["world_size"], 4);
  const Json& values = json["values"];
  EXPECT_EQ(values["train_micro_batch_size_per_gpu"]["value"], 2);
  EXPECT_EQ(values["optimizer.type"]["value"], "adamw");
  EXPECT_EQ(values["optimizer.params.betas"]["value"], Json({0.9, 0.999}));
  EXPECT_EQ(values["gradient_clipping"], Json({{"value", 1.0}, {"origin", "default"}}));
  EXPECT_TRUE(values["steps_per_print"]["value"].is_null());
  EXPECT_EQ(json["notes"].size(), 4U);
  EXPECT_EQ(json["notes"][3]["line"], 6);
}

TEST_F(DsConfigCommands, CheckShowsAllThatIsWrong) {
  const std::string path = file(kWrong);
  const Outcome outcome = run_lockstep({"ds-config", "check", path, "--world", "4"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("error: [" + path + ":2:23] batch sizes do not match; got train_batch_size"),
          HasSubstr("[" + path + ":3:3] unknown key 'gradient_clipp1ng'; did you mean"),
          HasSubstr("[" + path + ":4:34] invalid value for zero_optimization.stage; got \"4\" in"),
          HasSubstr("[" + path + ":4:39] unknown key 'zero_optimization.elastic'"),
          HasSubstr("[" + path + ":5:3] amp is refused: removed in DeepSpeed 0.19")));
  const Json json =
      json_of({"ds-config", "check", path, "--world", "4"}, 2, "lockstep.ds-config.check/1");
  EXPECT_EQ(json["exit_code"], 2);
  EXPECT_EQ(json["errors"].size(), 5U);
  EXPECT_EQ(json["errors"][1]["line"], 3);
  EXPECT_EQ(json["errors"][1]["column"], 3);
  EXPECT_THAT(json["error"].get<std::string>(), HasSubstr("batch sizes do not match"));
}

TEST_F(DsConfigCommands, CheckRefusesACallThatSaysTooLittle) {
  const std::string path = file(kSeed);
  const std::vector<std::pair<std::vector<std::string>, std::string>> calls = {
      {{"ds-config", "check", path}, "--world N is missing"},
      {{"ds-config", "check", path, "--world", "0"}, "expected a whole number from 1"},
      {{"ds-config", "check", "--world", "1"}, "expected one file"},
      {{"ds-config", "check", "/no/such/file", "--world", "1"}, "cannot be read"},
      {{"ds-config"}, "expected check or keys"},
      {{"ds-config", "keys", "x"}, "expected no arguments"},
      {{"ds-config", "check", file("{\"a\": 1, \"a\": 2}"), "--world", "1"}, "is given twice"}};
  for (const auto& [words, why] : calls) {
    const Outcome outcome = run_lockstep(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(why));
  }
}

TEST_F(DsConfigCommands, KeysAreThoseOfThePage) {
  const Outcome outcome = run_lockstep({"ds-config", "keys", "--markdown"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("| `zero_optimization.overlap_comm` |  | ignored | "),
          HasSubstr("| `WarmupDecayLR` | DeepSpeed's | `total_num_steps` (required), ")));
}

TEST_F(DsConfigCommands, KeysAreATableWithoutMarkdown) {
  const Outcome outcome = run_lockstep({"ds-config", "keys"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          ContainsRegex("^  KEY +DEFAULT +STATUS +DESCRIPTION\n  train_batch_size +works +samples"),
          HasSubstr("its name, in any case; see below\n"),
          ContainsRegex("\n  TYPE +DESCRIPTION +PARAMETERS AND DEFAULTS\n"),
          ContainsRegex("\n  WarmupDecayLR +DeepSpeed's +total_num_steps \\(required\\), "),
          Not(AnyOf(HasSubstr("|--"), HasSubstr("`"), HasSubstr("](#")))));
}

const std::string kWarmup = R"({
  "train_batch_size": 8,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100,
    "warmup_max_lr": "auto", "warmup_num_steps": 10, "warmup_type": "linear"}}
})";
const std::string kCycle = R"({
  "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1,
    "cycle_first_step_size": 5}}
})";

TEST_F(DsConfigCommands, ScheduleShowsRatesFromConstructionOn) {
  const Outcome outcome = run_lockstep({"schedule", file(kCycle), "--steps", "6"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr(".json: OneCycle\n"),
          HasSubstr("\n  STEP  LEARNING RATE  MOMENTUM  EVENT\n"
                    "     0       0.100000  0.800000  at construction\n"
                    "     1       0.280000  0.880000\n"),
          HasSubstr("     5        1.00000  0.800000  top of the cycle\n     6       0.820000"),
          Not(HasSubstr("are shown")),
          HasSubstr("The second beta is always 0.99.\n")));
}

TEST_F(DsConfigCommands, ScheduleShortensALongTableAndSaysSo) {
  const Outcome outcome = run_lockstep({"schedule", file(kWarmup), "--steps", "200"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          ContainsRegex("\n    11 +0.0100000 +warm-up ends\n"),
          ContainsRegex("\n   100 +0.000111111 +end\n"),
          ContainsRegex("\n   200 +0.00000 *\n"),
          ContainsRegex("\n[0-9]+ of 201 rows are shown; --json has all.\n"),
          Not(HasSubstr("fails there"))));
  const std::string exit_status = file(R"({"scheduler": {"type": "OneCycleLR", "params": {
    "max_lr": 1, "total_steps": 100}}})");
  EXPECT_THAT(
      run_lockstep({"schedule", exit_status, "--steps", "200"}).out,
      HasSubstr("The schedule ends at step 100; training to step 200 fails there.\n"));
}

TEST_F(DsConfigCommands, ScheduleAsJsonHasEveryStep) {
  const Json json = json_of({"schedule", file(kWarmup), "--steps", "60"}, 0, "lockstep.schedule/1");
  EXPECT_EQ(json["lr"].size(), 61U);
  EXPECT_EQ(json["lr"][0], 0.0);
  EXPECT_NEAR(json["lr"][6].get<double>(), 0.005, 1e-12);
  EXPECT_EQ(json["base_lr"], 0.01);
  EXPECT_TRUE(json["ends_at"].is_null());
  EXPECT_TRUE(json["momentum"].is_null());
  EXPECT_EQ(
      json["marks"],
      Json({{{"step", 11}, {"what", "warm-up ends"}}, {{"step", 100}, {"what", "end"}}}));
  EXPECT_EQ(json["groups"], "");
  const Json cycle = json_of({"schedule", file(kCycle), "--steps", "60"}, 0, "lockstep.schedule/1");
  EXPECT_EQ(cycle["momentum"].size(), 61U);
  EXPECT_EQ(cycle["beta2"], 0.99);
}

TEST_F(DsConfigCommands, SeveralParameterGroupsHaveAColumnEach) {
  const std::string path = file(R"({"scheduler": {"type": "LRRangeTest", "params": {
    "lr_range_test_min_lr": [0.1, 0.2], "lr_range_test_step_size": 1}}})");
  EXPECT_THAT(
      run_lockstep({"schedule", path, "--steps", "1"}).out,
      HasSubstr("  STEP  LEARNING RATE 0  LEARNING RATE 1  EVENT\n     0         0.100000         "
                "0.200000"));
  const Json json = json_of({"schedule", path, "--steps", "1"}, 0, "lockstep.schedule/1");
  EXPECT_EQ(json["lr"], Json({{0.1, 0.2}, {0.2, 0.4}}));
}

TEST_F(DsConfigCommands, MuonsTwoGroupsHaveTheirOwnRates) {
  const auto muon = [&](const std::string& params) {
    return file(
        R"({"optimizer": {"type": "Muon", "params": {)" + params +
        R"(}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}}})");
  };
  const std::string path = muon(R"("muon_lr": 0.05, "adam_lr": 0.001)");
  EXPECT_THAT(
      run_lockstep({"schedule", path, "--steps", "9"}).out,
      AllOf(
          HasSubstr(": WarmupLR\ngroup 0: matrices; group 1: others\n\n"),
          HasSubstr("  STEP  LEARNING RATE 0  LEARNING RATE 1  EVENT\n"),
          ContainsRegex("\n     9 +0.0500000 +0.00100000 *\n")));
  const Json json = json_of({"schedule", path, "--steps", "9"}, 0, "lockstep.schedule/1");
  EXPECT_EQ(json["base_lr"], Json({0.05, 0.001}));
  EXPECT_EQ(json["groups"], Json({"matrices", "others"}));
  EXPECT_EQ(json["lr"][9], Json({0.05, 0.001}));
  const Json plain = json_of({"schedule", muon(""), "--steps", "9"}, 0, "lockstep.schedule/1");
  EXPECT_EQ(plain["lr"][9], Json({0.02, 3e-4}));
}

TEST_F(DsConfigCommands, MuPScheduleShowsTheUnscaledGroup) {
  const std::string path = file(R"({"optimizer": {"type": "MuAdam", "params": {"lr": 0.5}},
    "scheduler": {"type": "StepLR", "params": {"step_size": 5}}})");
  EXPECT_THAT(
      run_lockstep({"schedule", path, "--steps", "9"}).out,
      HasSubstr(": StepLR\none group of several: those not scaled to the width\n\n"));
}

TEST_F(DsConfigCommands, AnOptimizerWithoutBetasHasNoMomentumCycled) {
  const auto cycled = [&](const std::string& type) {
    const std::string path = file(
        R"({"optimizer": {"type": ")" + type +
        R"("}, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
        "cycle_max_lr": 1}}})");
    return run_lockstep({"schedule", path, "--steps", "3"}).out;
  };
  EXPECT_THAT(cycled("AdamW"), HasSubstr("MOMENTUM"));
  EXPECT_THAT(cycled("SGD"), AllOf(HasSubstr("LEARNING RATE"), Not(HasSubstr("MOMENTUM"))));
  EXPECT_THAT(cycled("SGD"), Not(HasSubstr("second beta")));
}

TEST_F(DsConfigCommands, AWarmUpThatIsTooLongIsAWarningOnce) {
  const std::string path = file(R"({"scheduler": {"type": "WarmupDecayLR", "params": {
    "total_num_steps": 100, "warmup_num_steps": 200}}})");
  const Outcome outcome = run_lockstep({"schedule", path, "--steps", "100"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(
      outcome.err,
      testing::MatchesRegex("warning: [^\n]*the warm-up of 200 steps is longer[^\n]*100\n"));
}

TEST_F(DsConfigCommands, SchedulePlotsWithinEightyColumns) {
  const Outcome outcome = run_lockstep({"schedule", file(kCycle), "--steps", "3000", "--plot"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("learning rate\n"), HasSubstr("\nmomentum\n"), HasSubstr("+---")));
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(".json") == std::string::npos) {
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
}

TEST_F(DsConfigCommands, ARateThatTheFileLacksIsAskedFor) {
  const std::string path =
      file(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}})");
  const Outcome outcome = run_lockstep({"schedule", path, "--steps", "9"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("has no optimizer, whose learning rate"));
  const Json json =
      json_of({"schedule", path, "--steps", "9", "--lr", "5e-1"}, 0, "lockstep.schedule/1");
  EXPECT_EQ(json["lr"][9], 0.5);
}

TEST_F(DsConfigCommands, ScheduleRefusesInvalidArguments) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> calls = {
      {{"schedule", file(kWarmup)}, "--steps N is missing"},
      {{"schedule", file(kWarmup), "--steps", "x"}, "expected a whole number"},
      {{"schedule", file(kWarmup), "--steps", "5", "--lr", "-1"}, "expected a number from 0"},
      {{"schedule", "--steps", "5"}, "expected one file"},
      {{"schedule", file(kSeed), "--steps", "5"}, "has no scheduler"},
      {{"schedule", file(kWrong), "--steps", "5"}, "unknown key 'gradient_clipp1ng'"},
      {{"schedule", file(kWarmup), "--steps", "5", "--json", "--plot"},
       "--json and --plot are both given"}};
  for (const auto& [words, why] : calls) {
    const Outcome outcome = run_lockstep(words);
    EXPECT_EQ(outcome.code, 2) << why;
    EXPECT_THAT(outcome.out + outcome.err, HasSubstr(why));
  }
}

}  // namespace
}  // namespace lockstep::e2e
