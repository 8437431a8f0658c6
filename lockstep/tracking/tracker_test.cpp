// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tracker.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/tracking/lines/csv_tracker.h"
#include "lockstep/tracking/lines/jsonl_tracker.h"
#include "lockstep/tracking/tensorboard/tensorboard_tracker.h"
#include "lockstep/tracking/test_folder.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"

namespace lockstep::tracking {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Records the calls of a tracker.
class Recorder final : public Tracker {
 public:
  std::string name() const override { return "recorder"; }
  std::vector<std::string> calls;

 private:
  void do_store_config(const json& config) override { calls.push_back("config " + config.dump()); }
  void do_log(const Values& values, int64_t step) override {
    calls.push_back("log " + std::to_string(values.size()) + " at " + std::to_string(step));
  }
  void do_flush() override { calls.emplace_back("flush"); }
  void do_finish(RunStatus status) override { calls.emplace_back(name_of(status)); }
};

TEST(Tracker, ForwardsValidValues) {
  Recorder tracker;
  tracker.store_config({{"lr", 0.1}});
  tracker.log({{"loss", 0.5}, {"accuracy", 0.9}}, 0);
  tracker.log({}, 1);
  tracker.flush();
  tracker.finish(RunStatus::kKilled);
  EXPECT_THAT(tracker.calls, ElementsAre("config {\"lr\":0.1}", "log 2 at 0", "flush", "killed"));
}

TEST(Tracker, FinishCountsOnceAndIsFinishedByDefault) {
  Recorder tracker;
  tracker.finish();
  tracker.finish(RunStatus::kFailed);
  tracker.flush();
  EXPECT_THAT(tracker.calls, ElementsAre("finished"));
}

TEST(Tracker, NothingCanBeLoggedAfterFinish) {
  Recorder tracker;
  tracker.finish();
  const auto message = AllOf(HasSubstr("after finish"), HasSubstr("'recorder'"));
  EXPECT_THAT([&] { tracker.log({{"a", 1}}, 1); }, ThrowsMessage<ConfigError>(message));
  EXPECT_THAT([&] { tracker.log({}, 1); }, ThrowsMessage<ConfigError>(message));
  EXPECT_THAT([&] { tracker.store_config(json::object()); }, ThrowsMessage<ConfigError>(message));
}

TEST(Tracker, RefusesStepsNamesAndConfigsThatMakeNoSense) {
  Recorder tracker;
  EXPECT_THAT(
      [&] {
        tracker.log({{"a", 1}}, -1);
      },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("step"), HasSubstr("-1"))));
  EXPECT_THAT(
      [&] {
        tracker.log({{"a", 1}, {"", 2.5}}, 3);
      },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("the name of a value is empty"), HasSubstr("2.5"))));
  EXPECT_THAT(
      [&] {
        tracker.log({{"bad \xff", 1}}, 3);
      },
      ThrowsMessage<ConfigError>(HasSubstr("is not valid UTF-8")));
  for (const json& config : {json(nullptr), json(1), json::array({1})}) {
    EXPECT_THAT(
        [&] { tracker.store_config(config); },
        ThrowsMessage<ConfigError>(HasSubstr(config.type_name())));
  }
  EXPECT_TRUE(tracker.calls.empty());
}

TEST(Tracker, ConfigsAreStoredInTheTypesOfEachFormat) {
  const double infinity = std::numeric_limits<double>::infinity();
  const json config = {
      {"clip", infinity},
      {"nested", {{"floor", -infinity}, {"list", {1, std::nan("")}}}},
      {"path", "bad \xff"},
      {"seed", 7}};
  Recorder tracker;
  tracker.store_config(config);
  EXPECT_EQ(
      json::parse(tracker.calls.at(0).substr(7)),
      (json{
          {"clip", "Infinity"},
          {"nested", {{"floor", "-Infinity"}, {"list", {1, "NaN"}}}},
          {"path", "bad \xef\xbf\xbd"},
          {"seed", 7}}));
}

TEST(Tracker, RefusesMediaThatItDoesNotStore) {
  const TestFolder folder;
  CsvTracker csv(folder.path());
  EXPECT_THAT(
      [&] { csv.log_images({}, 1); },
      ThrowsMessage<ConfigError>(HasSubstr("tracker 'csv' stores no images; log them to")));
  EXPECT_THAT(
      [&] { csv.log_histograms({}, 1); },
      ThrowsMessage<ConfigError>(HasSubstr("tracker 'csv' stores no histograms")));
  EXPECT_THAT(
      [&] {
        csv.log_text({{"note", "a"}}, 1);
      },
      ThrowsMessage<ConfigError>(HasSubstr("tracker 'csv' stores no text")));
  JsonlTracker jsonl(folder.path() / "m.jsonl");
  EXPECT_THAT(
      [&] { jsonl.log_images({}, 1); },
      ThrowsMessage<ConfigError>(HasSubstr("tracker 'jsonl' stores no images")));
}

TEST(Tracker, ChecksMediaLikeNumbers) {
  const TestFolder folder;
  TensorBoardTracker tracker(folder.path());
  const Images images{1, 1, 1, 1, {0}};
  EXPECT_THAT(
      [&] {
        tracker.log_images({{"a", images}}, -1);
      },
      ThrowsMessage<ConfigError>(HasSubstr("the step is negative")));
  EXPECT_THAT(
      [&] {
        tracker.log_images({{"", images}}, 1);
      },
      ThrowsMessage<ConfigError>(HasSubstr("the name of a value is empty; got images")));
  EXPECT_THAT(
      [&] {
        tracker.log_images({{"a", Images{}}}, 1);
      },
      ThrowsMessage<ConfigError>(HasSubstr("'a' is no batch of images")));
  EXPECT_THAT(
      [&] {
        tracker.log_text({{"note", "bad \xff"}}, 1);
      },
      ThrowsMessage<ConfigError>(HasSubstr("text 'note' is not valid UTF-8 at step 1")));
  EXPECT_EQ(records_of(contents(tracker.path())).size(), 1U);
  tracker.finish();
  EXPECT_THAT(
      [&] {
        tracker.log_text({{"note", "a"}}, 1);
      },
      ThrowsMessage<ConfigError>(HasSubstr("after finish")));
}

TEST(Tracker, DestructionWithoutFinishKeepsLoggedValues) {
  const TestFolder folder;
  std::filesystem::path events;
  {
    JsonlTracker jsonl(folder.path() / "m.jsonl");
    TensorBoardTracker tensorboard(folder.path());
    events = tensorboard.path();
    jsonl.log({{"a", 1}}, 1);
    tensorboard.log({{"a", 1}}, 1);
  }
  EXPECT_EQ(lines_of(folder.path() / "m.jsonl").size(), 1U);
  EXPECT_EQ(records_of(contents(events)).size(), 2U);
}

}  // namespace
}  // namespace lockstep::tracking
