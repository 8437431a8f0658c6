// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/flight_watch.h"

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "lockstep/launcher/output/sink.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep::launcher {
namespace {

/// The records of two ranks, which are this process; no rank is running.
class FlightWatchTest : public testing::Test {
 protected:
  Sink out_{1};
  Sink err_{2};
  RankSet ranks_{out_, err_, false, 0};
};

TEST_F(FlightWatchTest, SeesTheNotesOfARank) {
  FlightWatch watch(2, 4, 1);
  watch::FlightRecorder recorder(Environment::of({{"LOCKSTEP_FLIGHT", watch.path(1)}}));
  recorder.join(5, 6);
  recorder.set_step(7);
  const auto& views = watch.read_views(ranks_);
  ASSERT_EQ(views.size(), 2U);
  EXPECT_EQ(views[0].rank, 4);
  EXPECT_EQ(views[0].record.pid, 0);
  EXPECT_EQ(views[1].rank, 5);
  EXPECT_EQ(views[1].record.step, 7);
  EXPECT_FALSE(views[1].host.empty());
}

TEST_F(FlightWatchTest, FindsTheRankWhoseLastOperationFailed) {
  FlightWatch watch(2, 0, 1);
  watch::FlightRecorder recorder(Environment::of({{"LOCKSTEP_FLIGHT", watch.path(0)}}));
  recorder.join(0, 2);
  recorder.end(recorder.issue({}), /*well=*/true);
  EXPECT_FALSE(watch.last_operation_failed(0));
  recorder.end(recorder.issue({}), /*well=*/false);
  EXPECT_TRUE(watch.last_operation_failed(0));
  EXPECT_FALSE(watch.last_operation_failed(1));
}

TEST_F(FlightWatchTest, CountsIdlenessUntilARankDoesSomething) {
  FlightWatch watch(1, 0, 1);
  watch::FlightRecorder recorder(Environment::of({{"LOCKSTEP_FLIGHT", watch.path(0)}}));
  recorder.join(0, 1);
  watch.read_views(ranks_);
  int64_t idle = 0;
  while (idle == 0) {
    idle = watch.read_views(ranks_).at(0).idle_ns;
  }
  recorder.set_step(1);
  EXPECT_EQ(watch.read_views(ranks_).at(0).idle_ns, 0);
}

TEST_F(FlightWatchTest, LooksOftenEnoughForItsTimeout) {
  const auto wait = [](const FlightWatch& watch) { return watch.deadline() - Clock::now(); };
  EXPECT_LE(wait(FlightWatch(1, 0, 1)), std::chrono::milliseconds(100));
  EXPECT_LE(wait(FlightWatch(1, 0, 1000)), std::chrono::seconds(1));
  EXPECT_LE(wait(FlightWatch(1, 0, 0)), std::chrono::seconds(1));
}

TEST_F(FlightWatchTest, BlamesNoRankWithoutATimeout) {
  watch::RankView idle;
  idle.record.pid = 1;
  idle.idle_ns = int64_t{1} << 60;
  EXPECT_TRUE(FlightWatch(1, 0, 1).stall({idle}));
  EXPECT_FALSE(FlightWatch(1, 0, 0).stall({idle}));
}

TEST(DefaultStallTimeout, IsALittleLessThanAnOperationMayTake) {
  EXPECT_DOUBLE_EQ(default_stall_timeout_seconds(Environment::of({})), 540);
  EXPECT_DOUBLE_EQ(
      default_stall_timeout_seconds(Environment::of({{"LOCKSTEP_TIMEOUT_MS", "10000"}})), 9);
}

TEST(FlightFolder, KeepsTheLatestDumps) {
  const TestFolder home;
  const auto folder = prepare_flight_folder(Environment::of({{"HOME", home.path().string()}}));
  ASSERT_TRUE(folder);
  EXPECT_EQ(*folder, home.path() / ".local/state/lockstep/flights");
  for (int i = 0; i < 25; ++i) {
    const auto path = *folder / ("dump" + std::to_string(i) + ".json");
    std::ofstream(path) << "{}";
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type() + std::chrono::seconds(i));
  }
  prepare_flight_folder(Environment::of({{"XDG_STATE_HOME", (home / ".local/state").string()}}));
  size_t left = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(*folder)) {
    ++left;
  }
  EXPECT_EQ(left, 19U);
  EXPECT_FALSE(std::filesystem::exists(*folder / "dump5.json"));
  EXPECT_TRUE(std::filesystem::exists(*folder / "dump6.json"));
}

TEST(FlightFolder, IsNotChangedByReaders) {
  const TestFolder home;
  const auto folder = flight_folder(Environment::of({{"HOME", home.path().string()}}));
  ASSERT_TRUE(folder);
  EXPECT_FALSE(std::filesystem::exists(*folder));
  EXPECT_TRUE(dumps_in(*folder).empty());
}

TEST(FlightFolder, IsEmptyIfNoneCanBeCreated) {
  EXPECT_FALSE(prepare_flight_folder(Environment::of({})));
  EXPECT_FALSE(flight_folder(Environment::of({})));
  EXPECT_FALSE(prepare_flight_folder(Environment::of({{"HOME", "/proc/nowhere"}})));
}

}  // namespace
}  // namespace lockstep::launcher
