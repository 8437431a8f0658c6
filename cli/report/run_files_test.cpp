// SPDX-License-Identifier: Apache-2.0
#include "cli/report/run_files.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/report/test_runs.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

std::vector<int64_t> steps_in(const RankRecords& rank) {
  std::vector<int64_t> steps;
  for (const RecordedSteps& record : rank.records) {
    steps.push_back(record.step);
  }
  return steps;
}

TEST(RunFiles, OfAProjectAreInItsOnlyFolderOfLogs) {
  const TestFolder folder;
  fs::create_directories(folder / "checkpoints");
  write_step_file(folder / "logs", 0, step_header(0, 1) + step_line(1, 1, 2));
  EXPECT_EQ(find_run_folder(folder.path()), folder / "logs");
  EXPECT_EQ(find_run_folder(folder / "logs"), folder / "logs");
  EXPECT_EQ(find_run_folder(folder / "logs" / "steps_0.jsonl"), folder / "logs");
}

TEST(RunFiles, AreFoundBesideTheFolderOfAnotherWriterOfEventFiles) {
  const TestFolder folder;
  write_step_file(folder / "logs", 0, step_header(0, 1));
  fs::create_directories(folder / "media");
  std::ofstream(folder / "media" / "events.out.tfevents.1.host");
  EXPECT_EQ(find_run_folder(folder.path()), folder / "logs");
  fs::remove_all(folder / "logs");
  EXPECT_EQ(find_run_folder(folder.path()), folder / "media");
}

TEST(RunFiles, OfSeveralRunsAreRefusedByName) {
  const TestFolder folder;
  write_step_file(folder / "a", 0, step_header(0, 1));
  write_step_file(folder / "b", 0, step_header(0, 1));
  EXPECT_THAT(
      [&] { find_run_folder(folder.path()); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("has 2 runs"), HasSubstr((folder / "b").string()))));
}

TEST(RunFiles, ThatAreAbsentAreAnErrorThatSaysHowToGetThem) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { read_run_files(folder.path()); },
      ThrowsMessage<ConfigError>(HasSubstr("LOCKSTEP_RECORD_STEPS=1")));
  EXPECT_THAT(
      [&] { read_run_files(folder / "none"); },
      ThrowsMessage<ConfigError>(HasSubstr("does not exist")));
}

TEST(RunFiles, HaveTheStepsOfEachRankAndTheEnd) {
  const TestFolder folder;
  write_step_file(
      folder.path(),
      0,
      step_header(0, 2) +
          R"({"config":{"lr":0.5}})"
          "\n"
          R"({"after_step":0,"time":100,"seconds":1.5,"other":1.25,"checkpoint":0.25})"
          "\n" +
          step_line(2, 2, 4) + R"({"status":"finished","time":103})" + "\n");
  write_step_file(folder.path(), 1, step_header(1, 2) + step_line(2, 2, 6));
  const RunFiles run = read_run_files(folder.path());
  ASSERT_THAT(run.ranks, SizeIs(2));
  const RecordedSteps& record = run.ranks[0].records.at(0);
  EXPECT_EQ(record.steps, 2);
  EXPECT_DOUBLE_EQ(record.seconds, 0.02);
  EXPECT_DOUBLE_EQ(record.parts[1], 0.016);
  EXPECT_DOUBLE_EQ(record.parts[4], 0.004);
  EXPECT_EQ(record.samples, 16);
  EXPECT_EQ(record.loss, 4);
  EXPECT_EQ(run.ranks[1].records.at(0).loss, 6);
  EXPECT_DOUBLE_EQ(run.ranks[0].between[6], 1.25);
  EXPECT_DOUBLE_EQ(run.ranks[0].between[5], 0.25);
  EXPECT_EQ(run.status, "finished");
  EXPECT_EQ(run.config.at("lr"), 0.5);
}

TEST(RunFiles, OfAResumedRunCountTheLaterOfRepeatedSteps) {
  const TestFolder folder;
  write_step_file(
      folder.path(),
      0,
      step_header(0, 1) + step_line(10, 10, 4) + step_line(20, 10, 3) + step_header(0, 1, 200) +
          step_line(15, 5, 9));
  const RunFiles run = read_run_files(folder.path());
  EXPECT_THAT(steps_in(run.ranks.at(0)), ElementsAre(10, 15));
  EXPECT_EQ(run.ranks[0].processes, 2);
  EXPECT_EQ(run.status, "");
}

TEST(RunFiles, OfASmallerResumedJobLeaveOutTheOtherRanks) {
  const TestFolder folder;
  write_step_file(
      folder.path(), 0, step_header(0, 2) + step_line(1, 1, 4) + step_header(0, 1, 200));
  write_step_file(folder.path(), 1, step_header(1, 2) + step_line(1, 1, 4));
  EXPECT_THAT(read_run_files(folder.path()).ranks, SizeIs(1));
}

TEST(RunFiles, NoteTheRanksOfOtherHosts) {
  const TestFolder folder;
  write_step_file(folder.path(), 1, step_header(1, 4));
  const RunFiles run = read_run_files(folder.path());
  EXPECT_THAT(run.notes, Contains(HasSubstr("ranks 0, 2, 3 of 4")));
}

TEST(RunFiles, NoteLinesThatAKilledProcessLeftIncomplete) {
  const TestFolder folder;
  const fs::path path = write_step_file(
      folder.path(), 0, step_header(0, 1) + step_line(1, 1, 4) + "{\"step\":2,\"ti");
  const RunFiles run = read_run_files(folder.path());
  EXPECT_THAT(steps_in(run.ranks.at(0)), ElementsAre(1));
  EXPECT_THAT(run.notes, Contains(HasSubstr(path.string() + ": a line is not complete")));
}

TEST(RunFiles, CutAtAnyByteAreReadOrRefusedByName) {
  const TestFolder folder;
  const std::string whole = step_header(0, 1) + step_line(1, 1, 4) + step_line(2, 1, 3);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const fs::path path = write_step_file(folder.path(), 0, whole.substr(0, bytes));
    try {
      EXPECT_LE(read_run_files(folder.path()).ranks.at(0).records.size(), 2U);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string())) << bytes;
    }
  }
}

TEST(RunFiles, WithAHeaderOfOtherTypesAreRefusedByName) {
  const TestFolder folder;
  for (const char* world : {"\"two\"", "0", "-1", "1e12", "[]"}) {
    std::string header = step_header(0, 1);
    header.replace(header.find("\"world\":1"), 9, std::string("\"world\":") + world);
    write_step_file(folder.path(), 0, header);
    EXPECT_THAT(
        [&] { read_run_files(folder.path()); },
        ThrowsMessage<ConfigError>(HasSubstr("steps_0.jsonl")))
        << world;
  }
}

TEST(RunFiles, OfAnotherFormatOrVersionAreRefusedByName) {
  const TestFolder folder;
  const fs::path path = write_step_file(folder.path(), 0, "{\"step\":1}\n");
  EXPECT_THAT(
      [&] { read_run_files(folder.path()); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr(path.string()), HasSubstr("is not a file of step records"))));
  write_step_file(folder.path(), 0, R"({"format":"lockstep-steps","version":2})");
  EXPECT_THAT(
      [&] { read_run_files(folder.path()); },
      ThrowsMessage<ConfigError>(HasSubstr("version 2; expected version 1")));
}

}  // namespace
}  // namespace lockstep::cli
