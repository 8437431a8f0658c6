// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/pipeline_report.h"

#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_errors.h"

namespace lockstep::cli {
namespace {

using pipeline_schedule::ScheduleKind;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr double kTolerance = 1e-9;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

TEST(PipelineReport, DrawsEachMicroBatchAtItsTime) {
  const Report report =
      pipeline_report({.kind = ScheduleKind::k1F1B, .stages = 4, .micro_batches = 8});
  EXPECT_THAT(
      report.text,
      StartsWith("1f1b: 4 stages, 8 micro-batches\n\n"
                 "time     0                   10                  20                  30\n"
                 "rank 0   0 1 2 3 . . . . . .B0== 4B1== 5B2== 6B3== 7B4== .B5== .B6== .B7==\n"
                 "rank 1   . 0 1 2 . . . .B0== 3B1== 4B2== 5B3== 6B4== 7B5== .B6== .B7== . .\n"
                 "rank 2   . . 0 1 . .B0== 2B1== 3B2== 4B3== 5B4== 6B5== 7B6== .B7== . . . .\n"
                 "rank 3   . . . 0B0== 1B1== 2B2== 3B3== 4B4== 5B5== 6B6== 7B7== . . . . . .\n"));
  EXPECT_THAT(
      report.text,
      AllOf(
          HasSubstr("bubble: 27.3% of the time, 37.5% of the work (9 of 33 units are idle;"),
          HasSubstr(
              "\nmost activations held, in micro-batches of a stage: 4 on rank 0, 3 on rank ")));
}

TEST(PipelineReport, DrawsTheHalvesOfZeroBubblesBackwards) {
  const Report report =
      pipeline_report({.kind = ScheduleKind::kZeroBubble, .stages = 2, .micro_batches = 3});
  EXPECT_THAT(
      report.text,
      HasSubstr("rank 0   0  1  . B0==== 2 B1====B2====\n"
                "rank 1   .  0 B0  1 B1 W0  2 B2 W1 W2\n"));
  EXPECT_THAT(report.text, HasSubstr("W0  for the weights"));
}

TEST(PipelineReport, NamesChunksByLetters) {
  const Report report = pipeline_report(
      {.kind = ScheduleKind::kInterleaved, .stages = 2, .micro_batches = 2, .chunks = 2});
  EXPECT_THAT(
      report.text,
      HasSubstr("rank 0   0a  1a  0b  1b  .   .  B0b===== .  B1b=====B0a=====B1a=====\n"
                "rank 1   .   0a  1a  0b B0b===== 1b B1b=====B0a=====B1a===== .   .\n"));
}

TEST(PipelineReport, SpacesSeparateTheCellsIfThereIsRoom) {
  const auto first_row = [](size_t columns) {
    const Report report = pipeline_report(
        {.kind = ScheduleKind::k1F1B, .stages = 2, .micro_batches = 2, .columns = columns});
    return lines_of(report.text)[3];
  };
  constexpr size_t kUnits = 9;
  EXPECT_EQ(first_row(8 + 3 * kUnits), "rank 0   0  1  .  . B0==== . B1====");
  EXPECT_EQ(first_row(8 + 3 * kUnits - 1), "rank 0   0 1 . .B0== .B1==");
}

TEST(PipelineReport, ANarrowTerminalGetsOneBlockAfterAnother) {
  const Report report = pipeline_report(
      {.kind = ScheduleKind::kGPipe, .stages = 2, .micro_batches = 3, .columns = 8 + 2 * 7});
  EXPECT_THAT(
      report.text,
      HasSubstr("time     0\n"
                "rank 0   0 1 2 . . .B0\n"
                "rank 1   . 0 1 2B0==B1\n"
                "\n"
                "time           10\n"
                "rank 0  ==B1==B2==\n"
                "rank 1  ==B2== . .\n"));
  for (const std::string& line : lines_of(report.text.substr(0, report.text.find("backward")))) {
    EXPECT_LE(line.size(), 60U) << line;
  }
}

TEST(PipelineReport, ALongScheduleEndsWithANote) {
  const Report report =
      pipeline_report({.kind = ScheduleKind::k1F1B, .stages = 64, .micro_batches = 200});
  EXPECT_LT(lines_of(report.text).size(), 230U);
  EXPECT_THAT(
      report.text, ContainsRegex("\nThe picture ends at time [0-9]+ of 789; --json has all.\n"));
  for (const std::string& line : lines_of(report.text)) {
    EXPECT_LE(line.size(), 80U) << line;
  }
  EXPECT_THAT(
      pipeline_report({.kind = ScheduleKind::k1F1B, .stages = 4, .micro_batches = 8}).text,
      Not(HasSubstr("The picture ends")));
}

TEST(PipelineReport, JsonHasTimesInForwardsOfAStage) {
  const nlohmann::json json =
      pipeline_report(
          {.kind = ScheduleKind::kInterleaved, .stages = 2, .micro_batches = 2, .chunks = 2})
          .json;
  EXPECT_EQ(json["pipeline"], "interleaved");
  EXPECT_EQ(json["chunks"], 2);
  EXPECT_EQ(json["time"], 7.5);  // 2 micro-batches of 3, and half of 3.
  EXPECT_NEAR(json["bubble_per_work"].get<double>(), 0.25, kTolerance);
  EXPECT_NEAR(json["bubble"].get<double>(), 0.2, kTolerance);
  EXPECT_EQ(json["activations"], nlohmann::json({2.0, 1.5}));
  EXPECT_EQ(
      json["ranks"][1][0],
      nlohmann::json(
          {{"action", "forward"}, {"chunk", 1}, {"micro_batch", 0}, {"start", 0.5}, {"end", 1}}));
}

TEST(PipelineReport, TheTableComparesAllSchedules) {
  const Report report = pipeline_report({.kind = {}, .stages = 4, .micro_batches = 8});
  EXPECT_THAT(
      report.text,
      HasSubstr("  SCHEDULE     CHUNKS  TIME  BUBBLE  OF THE WORK  ACTIVATIONS\n"
                "  gpipe             1    33   27.3%        37.5%            8\n"
                "  1f1b              1    33   27.3%        37.5%            4\n"
                "  interleaved       2  28.5   15.8%        18.8%          5.5\n"
                "  zero-bubble       1    27   11.1%        12.5%            4\n"
                "  zero-bubble       2  25.5    5.9%         6.2%            4\n"));
  EXPECT_EQ(report.json["schedules"].size(), 5U);
  EXPECT_EQ(report.json["schedules"][3]["activations"], nlohmann::json({4.0, 4.0, 4.0, 4.0}));
}

TEST(PipelineReport, TheTableSaysWhyAScheduleIsImpossible) {
  const Report report = pipeline_report({.kind = {}, .stages = 4, .micro_batches = 9});
  EXPECT_THAT(
      report.text,
      AllOf(
          ContainsRegex("\n  interleaved +2 +- +- +- +-\n"),
          HasSubstr("\ninterleaved of 2 chunks: [pipeline schedule] 9 micro-batches on 4 ranks"),
          HasSubstr("multiple of 2; use 8")));
  EXPECT_THAT(
      report.json["schedules"][2]["error"].get<std::string>(),
      HasSubstr("use 8 or 10 micro-batches"));
}

TEST(PipelineReport, RefusesSchedulesThatAreImpossibleOrTooLarge) {
  EXPECT_THAT(
      error_of([] {
        pipeline_report(
            {.kind = ScheduleKind::k1F1B, .stages = 4, .micro_batches = 8, .chunks = 2});
      }),
      HasSubstr("got 2 chunks per rank for 1f1b; expected 1; use interleaved or zero-bubble"));
  EXPECT_THAT(
      error_of([] {
        pipeline_report({.kind = ScheduleKind::kGPipe, .stages = 100, .micro_batches = 2001});
      }),
      HasSubstr("100 stages of 1 chunk and 2001 micro-batches are 200,100 forwards; expected at "
                "most 200,000; use fewer micro-batches"));
}

}  // namespace
}  // namespace lockstep::cli
