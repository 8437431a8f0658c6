// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/tensorboard/event_file.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tracking/tensorboard/tensorboard_tracker.h"
#include "lockstep/tracking/tensorboard/tfevents.h"
#include "lockstep/tracking/test_folder.h"
#include "lockstep/tracking/values/histogram.h"

namespace lockstep::tracking {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ThrowsMessage;

TEST(EventFile, HasScalarsConfigAndEndOfTheTrackersRun) {
  const TestFolder folder;
  TensorBoardTracker tracker(folder.path());
  tracker.store_config({{"lr", 0.1}, {"model", {{"depth", 3}}}});
  tracker.log({{"loss", 0.5}, {"accuracy", 0.25}}, 0);
  tracker.log({{"loss", 2}}, 7);
  tracker.log({{"loss", std::numeric_limits<double>::infinity()}}, 8);
  tracker.log({{"loss", 0.125}}, 7);
  tracker.log_text({{"config", "not a setting"}}, 8);
  tracker.log_histograms({{"w", histogram_of(std::vector<double>{1, 2})}}, 8);
  EXPECT_EQ(read_event_file(tracker.path()).status, "");
  tracker.finish();
  const EventFile file = read_event_file(tracker.path());
  EXPECT_THAT(
      file.scalars,
      ElementsAre(
          Pair("accuracy", ElementsAre(Pair(0, 0.25))),
          Pair("loss", ElementsAre(Pair(0, 0.5), Pair(7, 0.125), Pair(8, INFINITY)))));
  EXPECT_EQ(file.config, (nlohmann::json{{"lr", 0.1}, {"model", {{"depth", 3}}}}));
  EXPECT_EQ(file.status, "finished");
  EXPECT_TRUE(file.is_complete);
}

TEST(EventFile, OfAFailedRunSaysSo) {
  const TestFolder folder;
  TensorBoardTracker tracker(folder.path());
  tracker.store_config({{"lr", 0.1}});
  tracker.finish(RunStatus::kFailed);
  EXPECT_EQ(read_event_file(tracker.path()).status, "failed");
}

TEST(EventFile, CutOrDamagedIsReadUpToThere) {
  const TestFolder folder;
  TensorBoardTracker tracker(folder.path());
  tracker.log({{"loss", 0.5}}, 1);
  const std::string one = contents(tracker.path());
  tracker.log({{"loss", 0.25}}, 2);
  const std::string two = contents(tracker.path());
  const auto read = [&](const std::string& bytes) {
    return read_event_file(write_text(folder / "events.out.tfevents.1.cut", bytes));
  };
  for (size_t size = one.size() + 1; size < two.size(); ++size) {
    const EventFile file = read(two.substr(0, size));
    EXPECT_THAT(file.scalars, ElementsAre(Pair("loss", ElementsAre(Pair(1, 0.5))))) << size;
    EXPECT_FALSE(file.is_complete) << size;
  }
  for (size_t at = one.size(); at < two.size(); ++at) {
    std::string damaged = two;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_THAT(read(damaged).scalars, ElementsAre(Pair("loss", ElementsAre(Pair(1, 0.5))))) << at;
  }
  EXPECT_TRUE(read(one).is_complete);
  EXPECT_TRUE(read("").is_complete);
}

TEST(EventFile, AnEventThatIsNoMessageIsSkipped) {
  const TestFolder folder;
  for (const std::string event : {"\x0b", "\x80", "\x2a\x05", "\xff\xff\xff\xff\xff\xff"}) {
    const std::string bytes = tfevents::frame_record(event) +
                              tfevents::frame_record(tfevents::scalars(1, 1, {{"loss", 0.5}}));
    const EventFile file = read_event_file(write_text(folder / "events.out.tfevents.1.odd", bytes));
    EXPECT_THAT(file.scalars, ElementsAre(Pair("loss", ElementsAre(Pair(1, 0.5)))));
    EXPECT_TRUE(file.is_complete);
  }
}

TEST(EventFile, ThatIsAbsentIsRefusedByName) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { read_event_file(folder / "events.out.tfevents.1"); },
      ThrowsMessage<ConfigError>(HasSubstr("events.out.tfevents.1")));
}

}  // namespace
}  // namespace lockstep::tracking
