// SPDX-License-Identifier: Apache-2.0
#include "cli/report/tracker_files.h"

#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/report/test_runs.h"
#include "lockstep/base/error.h"
#include "lockstep/tracking/lines/csv_tracker.h"
#include "lockstep/tracking/lines/jsonl_tracker.h"
#include "lockstep/tracking/tensorboard/tensorboard_tracker.h"
#include "lockstep/tracking/values/histogram.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

TEST(TrackerFiles, HaveTheLoggedCurvesWithTheLaterOfRepeatedSteps) {
  const TestFolder folder;
  write_text(
      folder / "metrics.jsonl",
      R"({"config":{"lr":1},"time":1})"
      "\n"
      R"({"step":1,"time":2,"train/loss":3,"acc":"NaN"})"
      "\n"
      R"({"step":2,"time":2,"train/loss":2})"
      "\n"
      R"({"step":2,"time":3,"train/loss":1})"
      "\n"
      R"({"status":"failed","time":4})"
      "\n");
  const RunFiles run = read_run_files(folder.path());
  ASSERT_THAT(run.curves, SizeIs(2));
  EXPECT_TRUE(std::isnan(run.curves[0].points.at(0).second));
  EXPECT_EQ(run.curves[1].name, "train/loss");
  EXPECT_THAT(run.curves[1].points, ElementsAre(std::pair(1, 3.0), std::pair(2, 1.0)));
  EXPECT_EQ(run.status, "failed");
  EXPECT_THAT(run.ranks, IsEmpty());
  EXPECT_THAT(run.notes, Contains(HasSubstr("has no steps_<rank>.jsonl")));
}

TEST(TrackerFiles, MayHaveTextAndHistograms) {
  const TestFolder folder;
  {
    tracking::JsonlTracker tracker(folder / "metrics.jsonl");
    tracker.log({{"loss", 3}}, 1);
    tracker.log_text({{"note", "hello"}}, 1);
    tracker.log_histograms({{"w", tracking::histogram_of(std::vector<double>{1, 2})}}, 1);
  }
  const RunFiles run = read_run_files(folder.path());
  ASSERT_THAT(run.curves, SizeIs(1));
  EXPECT_THAT(run.notes, Not(Contains(HasSubstr("not complete"))));
}

TEST(TrackerFiles, OfTensorBoardAreReadWithThoseOfTheResumedRun) {
  const TestFolder folder;
  {
    tracking::TensorBoardTracker first(folder / "logs");
    first.store_config({{"lr", 0.5}});
    first.log({{"train/loss", 4}}, 1);
    first.log({{"train/loss", 3}}, 2);
    tracking::TensorBoardTracker resumed(folder / "logs");
    resumed.store_config({{"lr", 0.25}});
    resumed.log({{"train/loss", 2}}, 2);
    resumed.log({{"accuracy", std::nan("")}}, 3);
    resumed.finish();
  }
  const RunFiles run = read_run_files(folder.path());
  EXPECT_EQ(run.folder, folder / "logs");
  ASSERT_THAT(run.curves, SizeIs(2));
  EXPECT_TRUE(std::isnan(run.curves[0].points.at(0).second));
  EXPECT_EQ(run.curves[1].name, "train/loss");
  EXPECT_THAT(run.curves[1].points, ElementsAre(std::pair(1, 4.0), std::pair(2, 2.0)));
  EXPECT_EQ(run.config.at("lr"), 0.25);
  EXPECT_EQ(run.status, "finished");
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("has no steps_<rank>.jsonl")));
}

TEST(TrackerFiles, OfTensorBoardThatAreCutAreNoted) {
  const TestFolder folder;
  fs::path path;
  {
    tracking::TensorBoardTracker tracker(folder.path());
    tracker.log({{"loss", 4}}, 1);
    path = tracker.path();
  }
  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_THAT(
      read_run_files(path).notes,
      Contains(HasSubstr(path.string() + ": a record is damaged or incomplete")));
}

TEST(TrackerFiles, OfCsvAreReadUnderTheNamesOfTheFiles) {
  const TestFolder folder;
  {
    tracking::CsvTracker tracker(folder.path());
    tracker.log({{"Train/Samples/lr", 0.1}, {"loss", 4}}, 8);
    tracker.log({{"loss", -INFINITY}}, 16);
    tracker.log({{"loss", 1e-300}}, 16);
    tracker.log({{"loss", std::nan("")}}, 24);
  }
  write_text(folder / "data.csv", "x,y\n1,2\n");
  const fs::path cut = write_text(folder / "cut.csv", "step,cut\n1,2\n2");
  const RunFiles run = read_run_files(folder.path());
  ASSERT_THAT(run.curves, SizeIs(3));
  EXPECT_EQ(run.curves[0].name, "Train_Samples_lr");
  EXPECT_THAT(run.curves[0].points, ElementsAre(std::pair(8, 0.1)));
  EXPECT_THAT(run.curves[1].points, ElementsAre(std::pair(1, 2.0)));
  ASSERT_THAT(run.curves[2].points, SizeIs(3));
  EXPECT_EQ(run.curves[2].points[1], std::pair(int64_t{16}, 1e-300));
  EXPECT_TRUE(std::isnan(run.curves[2].points[2].second));
  EXPECT_THAT(run.notes, Contains(HasSubstr(cut.string() + ": a line is not complete")));
}

TEST(TrackerFiles, OfOtherProgramsAreNoRun) {
  const TestFolder folder;
  write_text(folder / "data.csv", "x,y\n1,2\n");
  EXPECT_THAT(
      [&] { read_run_files(folder.path()); },
      ThrowsMessage<ConfigError>(HasSubstr("expected the folder of a run")));
  EXPECT_THAT(
      [&] { read_run_files(folder / "data.csv"); },
      ThrowsMessage<ConfigError>(HasSubstr("is not a file of a run")));
}

}  // namespace
}  // namespace lockstep::cli
