// SPDX-License-Identifier: Apache-2.0
// Reads Lockstep's files by the readers of TensorBoard, in the Python that LOCKSTEP_PYTHON names,
// and of wandb, in the one of the variable LOCKSTEP_TRACKER_PYTHON.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/tracking/tensorboard/tensorboard_tracker.h"
#include "lockstep/tracking/test_folder.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"
#include "lockstep/tracking/values/table.h"
#include "lockstep/tracking/wandb/wandb_tracker.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

const std::string kPython = LOCKSTEP_PYTHON;
constexpr int kNoReader = 3;  // Exit code of the scripts.

/// Returns the Python with wandb: LOCKSTEP_TRACKER_PYTHON, or the one with TensorBoard.
std::string wandb_python() {
  const char* python = std::getenv("LOCKSTEP_TRACKER_PYTHON");
  return python != nullptr ? python : kPython;
}

struct Reading {
  int code = 0;
  std::string output;
};

Reading read(
    const std::filesystem::path& folder,
    const std::string& script = "read_tensorboard",
    const std::string& python = kPython) {
  const std::string command = "'" + python + "' '" LOCKSTEP_SOURCE_DIR "/tests/tracking/" + script +
                              ".py' '" + folder.string() + "'";
  FILE* pipe = ::popen(command.c_str(), "r");
  Reading reading;
  char buffer[4096];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    reading.output.append(buffer, got);
  }
  const int status = ::pclose(pipe);
  reading.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return reading;
}

/// Logs a value in another process until step 99, and kills that.
template <class MakeTracker>
void log_and_be_killed(const MakeTracker& make) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto tracker = make();
    for (int step = 0; step < 100; ++step) {
      tracker->log({{"loss", 0.5}}, step);
    }
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
}

class RealTensorBoard : public testing::Test {
 protected:
  void SetUp() override {
    if (kPython.empty()) {
      GTEST_SKIP()
          << "LOCKSTEP_PYTHON is not set: configure with -DLOCKSTEP_PYTHON=<python that has "
             "tensorboard>";
    }
    static const int code = read("/nonexistent").code;
    if (code == kNoReader) {
      GTEST_SKIP() << kPython << " has no tensorboard: pip install tensorboard";
    }
  }

  json read_back(const std::string& script = "read_tensorboard") const {
    const Reading reading = read(folder_.path(), script);
    EXPECT_EQ(reading.code, 0) << reading.output;
    return json::parse(reading.output);
  }

  TestFolder folder_;
};

TEST_F(RealTensorBoard, ReadsScalarsWithStepsTimesAndNumbersThatAreNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  {
    TensorBoardTracker tracker(folder_.path());
    tracker.log({{"loss", 1.0 / 3}, {"train/accuracy α", 0.5}}, 0);
    tracker.log({{"loss", std::numeric_limits<double>::quiet_NaN()}}, 1);
    tracker.log({{"loss", infinity}}, 2);
    tracker.log({{"loss", -1e300}}, 3);
    tracker.log({{"loss", 0}}, 5000000000);
  }
  const json scalars = read_back().at("scalars");
  const json& loss = scalars.at("loss");
  ASSERT_EQ(loss.size(), 5U);
  EXPECT_EQ(loss[0].at("value"), static_cast<double>(1.0F / 3.0F));
  EXPECT_EQ(loss[1].at("value"), "NaN");
  EXPECT_EQ(loss[2].at("value"), "Infinity");
  EXPECT_EQ(loss[3].at("value"), "-Infinity");
  EXPECT_EQ(loss[4].at("value"), 0.0);
  EXPECT_EQ(loss[0].at("step"), 0);
  EXPECT_EQ(loss[4].at("step"), 5000000000);
  EXPECT_LE(std::abs(loss[0].at("wall_time").get<double>() - wall_time_s()), 60);
  EXPECT_EQ(scalars.at("train/accuracy α").at(0).at("value"), 0.5);
}

TEST_F(RealTensorBoard, ReadsConfigAsTextAndHParams) {
  TensorBoardTracker tracker(folder_.path());
  tracker.store_config(
      {{"model", "cnn"},
       {"optimizer", {{"lr", 0.1}, {"clip", std::numeric_limits<double>::infinity()}}},
       {"amp", true},
       {"steps", 100},
       {"path", "bad \xff"}});
  tracker.log({{"loss", 0.5}, {"accuracy", 0.9}}, 1);
  const json start = {
      {"model", "cnn"},
      {"optimizer.lr", 0.1},
      {"optimizer.clip", "Infinity"},
      {"amp", true},
      {"steps", 100},
      {"path", "bad \xef\xbf\xbd"}};
  const json running = read_back();
  EXPECT_EQ(running.at("hparams"), (json{{"start", start}}));
  const std::string text = running.at("text").at("config/text_summary").at(0);
  EXPECT_NE(text.find("\"lr\": 0.1"), std::string::npos) << text;

  tracker.finish();
  const json finished = read_back().at("hparams");
  EXPECT_EQ(finished.at("start"), start);
  EXPECT_EQ(finished.at("metrics"), (json{"accuracy", "loss"}));
  EXPECT_EQ(finished.at("types").at("optimizer.lr"), 3);
  EXPECT_EQ(finished.at("types").at("amp"), 2);
  EXPECT_EQ(finished.at("types").at("model"), 1);
  EXPECT_EQ(finished.at("status"), 1);
}

TEST_F(RealTensorBoard, ReadsImagesOfEachNumberOfChannels) {
  TensorBoardTracker tracker(folder_.path());
  tracker.log_images(
      {{"grey", {2, 1, 2, 1, {0, 255, 7, 8}}},
       {"rgb", {1, 2, 1, 3, {1, 2, 3, 4, 5, 6}}},
       {"rgba", {1, 1, 1, 4, {9, 8, 7, 6}}}},
      5);
  const json images = read_back().at("images");
  const json grey = {{"step", 5}, {"size", {"2", "1"}}, {"pixels", {{{{0}, {255}}}, {{{7}, {8}}}}}};
  EXPECT_EQ(images.at("grey"), json::array({grey}));
  EXPECT_EQ(images.at("rgb").at(0).at("pixels").dump(), "[[[[1,2,3]],[[4,5,6]]]]");
  EXPECT_EQ(images.at("rgba").at(0).at("pixels").dump(), "[[[[9,8,7,6]]]]");
}

TEST_F(RealTensorBoard, ReadsHistogramsAndTheirCountOfNumbersThatAreNotFinite) {
  const std::vector<double> values = {0, 1, 1.5, 2, 3.9, 4, std::nan("")};
  const std::vector<double> none = {std::nan("")};
  TensorBoardTracker tracker(folder_.path());
  tracker.log_histograms({{"w", histogram_of(values, 4)}, {"none", histogram_of(none)}}, 3);
  const json read = read_back();
  const json w = {
      {"step", 3},
      {"min", 0.0},
      {"max", 4.0},
      {"num", 6.0},
      {"sum", 12.4},
      {"sum_squares", 1 + 2.25 + 4 + 3.9 * 3.9 + 16},
      {"limits", {1.0, 2.0, 3.0, 4.0}},
      {"counts", {1.0, 2.0, 1.0, 2.0}}};
  EXPECT_EQ(read.at("histograms"), (json{{"w", {w}}}));
  EXPECT_EQ(read.at("scalars").at("w/non_finite").at(0).at("value"), 1.0);
  EXPECT_EQ(read.at("scalars").at("none/non_finite").at(0).at("value"), 1.0);
}

TEST_F(RealTensorBoard, ReadsTextOfSteps) {
  TensorBoardTracker tracker(folder_.path());
  tracker.log_text({{"note", "**hello** α"}}, 1);
  tracker.log_text({{"note", "world"}}, 2);
  EXPECT_EQ(read_back().at("text").at("note/text_summary"), (json{"**hello** α", "world"}));
}

TEST_F(RealTensorBoard, ReadsTablesAsText) {
  TensorBoardTracker tracker(folder_.path());
  tracker.log_tables({{"answers", {{"text", "score"}, {{"yes", 0.5}}}}}, 1);
  EXPECT_EQ(
      read_back().at("text").at("answers/text_summary"),
      (json{"| text | score |\n|---|---|\n| yes | 0.5 |"}));
}

TEST_F(RealTensorBoard, ItsServerShowsAllFiveKinds) {
  TensorBoardTracker tracker(folder_.path() / "run");
  tracker.store_config({{"lr", 0.1}});
  tracker.log({{"loss", 0.5}}, 1);
  tracker.log_images({{"samples", {2, 1, 2, 1, {0, 255, 7, 8}}}}, 1);
  const std::vector<double> values = {0, 1, 2};
  tracker.log_histograms({{"w", histogram_of(values, 2)}}, 1);
  tracker.log_text({{"note", "hello"}}, 1);
  tracker.finish();
  const json shown = read_back("ask_tensorboard");
  EXPECT_EQ(shown.at("scalar"), 0.5);
  EXPECT_EQ(shown.at("images"), 2);
  EXPECT_EQ(shown.at("second_image").dump(), "[[[7],[8]]]");
  EXPECT_EQ(shown.at("buckets").at(0).dump(), "[0.0,1.0,1.0]");
  EXPECT_NE(shown.at("text").dump().find("<p>hello</p>"), std::string::npos);
  EXPECT_EQ(shown.at("hparams"), (json{{"lr", 0.1}}));
}

TEST_F(RealTensorBoard, ReadsATruncatedFileUpToItsLastCompleteRecord) {
  std::filesystem::path file;
  {
    TensorBoardTracker tracker(folder_.path());
    file = tracker.path();
    for (int step = 0; step < 10; ++step) {
      tracker.log({{"loss", 0.5}}, step);
    }
  }
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 7);
  const json loss = read_back().at("scalars").at("loss");
  ASSERT_EQ(loss.size(), 9U);
  EXPECT_EQ(loss.back().at("step"), 8);
}

TEST_F(RealTensorBoard, ReadsAResumedRunAsOneCurve) {
  for (int part = 0; part < 2; ++part) {
    TensorBoardTracker tracker(folder_.path());
    tracker.store_config({{"lr", 0.1}});
    for (int step = 0; step < 5; ++step) {
      tracker.log({{"loss", 0.5}}, part * 5 + step);
    }
  }
  const json loss = read_back().at("scalars").at("loss");
  ASSERT_EQ(loss.size(), 10U);
  for (int step = 0; step < 10; ++step) {
    EXPECT_EQ(loss[static_cast<size_t>(step)].at("step"), step);
  }
}

TEST_F(RealTensorBoard, AKilledProcessLosesNothingItLogged) {
  log_and_be_killed([&] { return std::make_unique<TensorBoardTracker>(folder_.path()); });
  EXPECT_EQ(read_back().at("scalars").at("loss").size(), 100U);
}

class RealWandb : public testing::Test {
 protected:
  void SetUp() override {
    static const int code = read("/nonexistent", "read_wandb", wandb_python()).code;
    if (code == kNoReader || code == 127) {
      GTEST_SKIP() << "no wandb with its reader of files; set LOCKSTEP_TRACKER_PYTHON to a Python "
                      "with wandb 0.25";
    }
  }
  json read_back() const {
    const Reading reading = read(folder_.path(), "read_wandb", wandb_python());
    EXPECT_EQ(reading.code, 0) << reading.output;
    return json::parse(reading.output);
  }
  TestFolder folder_;
};

TEST_F(RealWandb, ReadsARunOfAllKinds) {
  const double infinity = std::numeric_limits<double>::infinity();
  WandbTracker tracker(
      folder_.path(),
      {.project = "demo",
       .entity = "team",
       .name = "first",
       .group = "sweep",
       .tags = {"a", "b"},
       .id = "abc"});
  tracker.store_config({{"lr", 0.1}, {"model", {{"depth", 3}}}});
  tracker.log({{"train/loss", 0.5}, {"nan", std::nan("")}, {"up", infinity}}, 3);
  tracker.log_images({{"samples", {2, 1, 2, 1, {0, 255, 7, 8}}}}, 4);
  tracker.log_histograms({{"w", histogram_of(std::vector<double>{0, 1, 2}, 2)}}, 4);
  tracker.log_text({{"note", "hello α"}}, 5);
  tracker.finish(RunStatus::kFailed);
  const json found = read_back();
  json run = found.at("run");
  EXPECT_LE(std::abs(run.at("start_s").get<double>() - wall_time_s()), 60);
  run.erase("start_s");
  EXPECT_EQ(
      run,
      (json{
          {"run_id", "abc"},
          {"project", "demo"},
          {"display_name", "first"},
          {"group", "sweep"},
          {"entity", "team"},
          {"tags", {"a", "b"}}}));
  EXPECT_EQ(found.at("config"), (json{{"lr", 0.1}, {"model", {{"depth", 3}}}}));
  const json& history = found.at("history");
  ASSERT_EQ(history.size(), 4U);
  EXPECT_EQ(history[0].at("train/loss"), 0.5);
  EXPECT_EQ(history[0].at("nan"), "NaN");
  EXPECT_EQ(history[0].at("up"), "Infinity");
  EXPECT_EQ(history[0].at("_step"), 3);
  EXPECT_EQ(history[0].at("step"), 3);
  const json files = {"media/images/samples_4_0.png", "media/images/samples_4_1.png"};
  EXPECT_EQ(history[1].at("samples").at("filenames"), files);
  EXPECT_EQ(history[1].at("samples").at("_type"), "images/separated");
  EXPECT_EQ(found.at("files"), files);
  EXPECT_EQ(
      contents(tracker.folder() / "files" / "media/images/samples_4_1.png"),
      png({2, 1, 2, 1, {0, 255, 7, 8}}, 1));
  EXPECT_EQ(
      history[2].at("w"),
      (json{{"_type", "histogram"}, {"values", {1, 2}}, {"bins", {0.0, 1.0, 2.0}}}));
  EXPECT_EQ(history[3].at("note"), "hello α");
  EXPECT_EQ(found.at("summary").at("train/loss"), 0.5);
  EXPECT_EQ(found.at("exit"), 1);
}

TEST_F(RealWandb, ReadsATableAndItsFile) {
  WandbTracker tracker(folder_.path(), {.id = "abc"});
  tracker.log_tables(
      {{"val/answers", {{"text", "score"}, {{"yes", 0.5}, {"no", std::nan("")}}}}}, 3);
  const std::string path = "media/table/val/answers_3.table.json";
  const std::string text = contents(tracker.folder() / "files" / path);
  EXPECT_EQ(text, R"({"columns":["text","score"],"data":[["yes",0.5],["no",NaN]]})");
  const json found = read_back();
  EXPECT_EQ(
      found.at("history").at(0).at("val/answers"),
      (json{
          {"_type", "table-file"},
          {"path", path},
          {"size", text.size()},
          {"ncols", 2},
          {"nrows", 2},
          {"log_mode", "IMMUTABLE"}}));
  EXPECT_EQ(found.at("files"), (json{path}));
}

TEST_F(RealWandb, ReadsRecordsAcrossBlocks) {
  WandbTracker tracker(folder_.path(), {.id = "abc"});
  for (int step = 0; step < 1000; ++step) {
    tracker.log_text({{"note", std::string(static_cast<size_t>(step * 97 % 900), 'a')}}, step);
  }
  tracker.log_text({{"note", std::string(100000, 'b')}}, 1000);
  const json history = read_back().at("history");
  ASSERT_EQ(history.size(), 1001U);
  EXPECT_EQ(history[999].at("note").get<std::string>().size(), 999U * 97 % 900);
  EXPECT_EQ(history[1000].at("note"), std::string(100000, 'b'));
}

TEST_F(RealWandb, AKilledProcessLosesNothingItLogged) {
  log_and_be_killed(
      [&] { return std::make_unique<WandbTracker>(folder_.path(), WandbOptions{.id = "abc"}); });
  const json found = read_back();
  EXPECT_EQ(found.at("history").size(), 100U);
  EXPECT_TRUE(found.at("exit").is_null());
}

}  // namespace
}  // namespace lockstep::tracking
