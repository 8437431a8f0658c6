// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/steps/step_records.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/tracking/test_folder.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

std::vector<json> parsed_lines(const std::filesystem::path& path) {
  std::vector<json> parsed;
  for (const std::string& line : lines_of(path)) {
    parsed.push_back(json::parse(line));
  }
  return parsed;
}

TEST(StepRecords, OfAProcessAreLinesWithTheirParts) {
  const TestFolder folder;
  const auto path = folder / "deep" / step_file_name(3);
  StepRecordWriter file(path, {{"rank", 3}});
  file.write_config({{"lr", 0.1}});
  file.write_between(0, {0, 0, 0, 0, 0, 0, 2'000'000'000});
  file.write_step(
      {.step = 40,
       .steps = 38,
       .skipped = 2,
       .times = {1'000'000, 0, 3'000'000, 0, 0, 0, 0},
       .longest_ns = 500'000,
       .samples = 380,
       .loss = 0.1,
       .lr = 1e-3,
       .process_bytes = 4096});
  file.write_status(RunStatus::kFinished);
  const auto lines = parsed_lines(path);
  ASSERT_THAT(lines, SizeIs(5));
  EXPECT_EQ(lines[0].at("format"), "lockstep-steps");
  EXPECT_EQ(lines[0].at("version"), 1);
  EXPECT_EQ(lines[0].at("rank"), 3);
  EXPECT_EQ(lines[1], json({{"config", {{"lr", 0.1}}}}));
  EXPECT_EQ(lines[2].at("after_step"), 0);
  EXPECT_EQ(lines[2].at("other"), 2.0);
  json step = lines[3];
  EXPECT_GT(step.at("time").get<double>(), 1.7e9);
  step.erase("time");
  EXPECT_EQ(
      step,
      json(
          {{"step", 40},
           {"seconds", 0.004},
           {"data", 0.001},
           {"backward", 0.003},
           {"steps", 38},
           {"longest", 0.0005},
           {"skipped", 2},
           {"samples", 380},
           {"process_bytes", 4096},
           {"loss", 0.1},
           {"lr", 0.001}}));
  EXPECT_EQ(lines[4].at("status"), "finished");
}

TEST(StepRecords, KeepALossThatIsNoNumber) {
  const TestFolder folder;
  StepRecordWriter file(folder / "s", {{"rank", 0}});
  file.write_step({.step = 1, .steps = 1, .loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_EQ(parsed_lines(folder / "s").back().at("loss"), "NaN");
}

TEST(StepRecords, OfAResumedRunFollowAnIncompleteLine) {
  const TestFolder folder;
  write_text(folder / "s", "{\"step\": 4");
  const StepRecordWriter file(folder / "s", {{"rank", 0}});
  const auto lines = lines_of(folder / "s");
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(json::parse(lines[1]).at("rank"), 0);
}

TEST(StepRecords, NameTheFileThatCannotBeOpened) {
  EXPECT_THAT(
      [] {
        StepRecordWriter("/proc/nothing/steps_0.jsonl", {{"rank", 0}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("/proc/nothing")));
}

/// Writes records until the file has its largest size; an exception is a failure.
int write_until_full(const std::filesystem::path& folder) {
  StepRecordWriter file(folder / "s", {{"rank", 0}});
  for (int step = 1; step < 100; ++step) {
    file.write_step({.step = step, .steps = 1});
  }
  return 0;
}

TEST(StepRecords, DoNotStopTheTrainingOnAFullDisk) {
  const TestFolder folder;
  EXPECT_EQ(run_with_file_limit(1000, write_until_full, folder.path()), 0);
  const auto lines = parsed_lines(folder / "s");  // All are complete.
  EXPECT_GT(lines.size(), 3U);
}

}  // namespace
}  // namespace lockstep::tracking
