// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tensorboard/tensorboard_tracker.h"

#include <fstream>
#include <limits>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tracking/test_folder.h"

namespace lockstep::tracking {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::ThrowsMessage;

std::vector<std::string> records(const TensorBoardTracker& tracker) {
  return records_of(contents(tracker.path()));
}

TEST(TensorBoard, NamesItsFileAsEventFilesAreNamed) {
  const TestFolder folder;
  const TensorBoardTracker tracker(folder.path() / "runs" / "a");
  EXPECT_EQ(tracker.path().parent_path(), folder.path() / "runs" / "a");
  EXPECT_THAT(
      tracker.path().filename().string(),
      MatchesRegex(
          R"(events\.out\.tfevents\.[0-9]+\..+\.)" + std::to_string(::getpid()) + R"(\.[0-9]+)"));
}

TEST(TensorBoard, NeverWritesIntoAFileThatIsThere) {
  const TestFolder folder;
  const TensorBoardTracker first(folder.path());
  const TensorBoardTracker second(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(records(first).size(), 1U);
  EXPECT_EQ(records(second).size(), 1U);
}

TEST(TensorBoard, BeginsWithTheFileVersion) {
  const TestFolder folder;
  const TensorBoardTracker tracker(folder.path());
  ASSERT_EQ(records(tracker).size(), 1U);
  EXPECT_THAT(records(tracker)[0], HasSubstr("brain.Event:2"));
}

TEST(TensorBoard, EveryRecordIsInTheFileWhenLogReturns) {
  const TestFolder folder;
  TensorBoardTracker tracker(folder.path());
  for (int step = 0; step < 5; ++step) {
    tracker.log({{"loss", 0.5}, {"accuracy", 0.25}}, step);
    ASSERT_EQ(records(tracker).size(), static_cast<size_t>(step + 2));
  }
  EXPECT_THAT(records(tracker).back(), AllOf(HasSubstr("loss"), HasSubstr("accuracy")));
  EXPECT_NO_THROW(tracker.flush());
}

TEST(TensorBoard, ConfigMetricsAndStatusGoToTheHParamsTab) {
  const TestFolder folder;
  TensorBoardTracker tracker(folder.path());
  tracker.store_config({{"optimizer", {{"lr", 0.1}}}});
  tracker.log({{"loss", 0.5}}, 1);
  EXPECT_THAT(
      contents(tracker.path()),
      AllOf(
          HasSubstr("config/text_summary"),
          HasSubstr("_hparams_/session_start_info"),
          HasSubstr("optimizer.lr"),
          Not(HasSubstr("_hparams_/session_end_info"))));
  tracker.finish(RunStatus::kFailed);
  const std::vector<std::string> all = records(tracker);
  ASSERT_EQ(all.size(), 6U);
  EXPECT_THAT(all[4], AllOf(HasSubstr("_hparams_/experiment"), HasSubstr("loss")));
  EXPECT_THAT(all[5], HasSubstr("_hparams_/session_end_info"));
}

TEST(TensorBoard, WithoutAConfigThereAreNoHParams) {
  const TestFolder folder;
  TensorBoardTracker tracker(folder.path());
  tracker.log({{"loss", 0.5}}, 1);
  tracker.finish();
  EXPECT_EQ(records(tracker).size(), 2U);
}

int fill_event_file(const std::filesystem::path& folder) {
  TensorBoardTracker tracker(folder);
  return log_until_full(tracker, {"File too large", tracker.path().string()});
}

TEST(TensorBoard, AFullDiskIsAnErrorAndLeavesCompleteRecords) {
  const TestFolder folder;
  EXPECT_EQ(run_with_file_limit(1000, &fill_event_file, folder.path()), 0);
  const auto file = std::filesystem::directory_iterator(folder.path())->path();
  const std::vector<std::string> records = records_of(contents(file));
  EXPECT_GT(records.size(), 10U);
  size_t size = 0;
  for (const std::string& record : records) {
    size += record.size() + 16;
  }
  EXPECT_EQ(size, std::filesystem::file_size(file));
}

TEST(TensorBoard, AFolderThatCannotBeIsRefusedAtConstruction) {
  const TestFolder folder;
  std::ofstream(folder.path() / "file") << "no folder";
  EXPECT_THAT(
      [&] { TensorBoardTracker(folder.path() / "file" / "run"); },
      ThrowsMessage<ConfigError>(HasSubstr((folder.path() / "file" / "run").string())));
}

}  // namespace
}  // namespace lockstep::tracking
