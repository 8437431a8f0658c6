// SPDX-License-Identifier: Apache-2.0
// Reads Lockstep's files by TensorBoard's own reader, in the Python that LOCKSTEP_PYTHON names.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/tracking/file_trackers.h"
#include "lockstep/tracking/test_folder.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;

const std::string kPython = LOCKSTEP_PYTHON;
constexpr int kNoTensorboard = 3;  // Exit code of read_tensorboard.py.

struct Reading {
  int code = 0;
  std::string output;
};

Reading read(const std::filesystem::path& folder) {
  const std::string command = "'" + kPython +
                              "' '" LOCKSTEP_SOURCE_DIR "/tests/tracking/read_tensorboard.py' '" +
                              folder.string() + "'";
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

class RealTensorBoard : public testing::Test {
 protected:
  void SetUp() override {
    if (kPython.empty()) {
      GTEST_SKIP()
          << "LOCKSTEP_PYTHON is not set: configure with -DLOCKSTEP_PYTHON=<python that has "
             "tensorboard>";
    }
    static const int code = read("/nonexistent").code;
    if (code == kNoTensorboard) {
      GTEST_SKIP() << kPython << " has no tensorboard: pip install tensorboard";
    }
  }

  json read_back() const {
    const Reading reading = read(folder_.path());
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
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    TensorBoardTracker tracker(folder_.path());
    for (int step = 0; step < 100; ++step) {
      tracker.log({{"loss", 0.5}}, step);
    }
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_back().at("scalars").at("loss").size(), 100U);
}

}  // namespace
}  // namespace lockstep::tracking
