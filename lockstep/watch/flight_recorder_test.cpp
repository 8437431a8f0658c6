// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/flight_recorder.h"

#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/watch/test_views.h"

namespace lockstep::watch {
namespace {

Environment watched_by(const FlightMemory& memory) {
  return Environment::of({{"LOCKSTEP_FLIGHT", memory.path()}});
}

TEST(FlightRecorder, NotesOperationsWhereTheLauncherReadsThem) {
  const FlightMemory memory = FlightMemory::create();
  FlightRecorder recorder(watched_by(memory));
  EXPECT_EQ(memory.read().pid, 0);
  recorder.join(1, 2);
  recorder.set_step(5);
  const uint64_t first = recorder.issue(all_reduce(0, 0, Stage::kDone));
  recorder.start(first);
  recorder.end(first, true);
  const uint64_t second = recorder.issue(all_reduce(0, 0, Stage::kDone));
  recorder.end(second, false);
  const uint64_t third = recorder.issue(all_reduce(0, 0, Stage::kDone));
  const FlightRecord record = memory.read();
  EXPECT_EQ(record.pid, ::getpid());
  EXPECT_EQ(record.rank, 1);
  EXPECT_EQ(record.issued, 3U);
  EXPECT_EQ(record.ended, 2U);
  ASSERT_EQ(record.operations.size(), 3U);
  const Operation& done = record.operations[0];
  EXPECT_EQ(done.stage, Stage::kDone);
  EXPECT_EQ(done.step, 5);
  EXPECT_LE(done.issued_ns, done.started_ns);
  EXPECT_LE(done.started_ns, done.ended_ns);
  EXPECT_EQ(record.operations[1].stage, Stage::kFailed);
  EXPECT_EQ(record.operations[2].stage, Stage::kIssued);
  EXPECT_EQ(third, 3U);
  recorder.leave();
  EXPECT_TRUE(memory.read().left);
}

TEST(FlightRecorder, OfAProcessThatARankHasStartedIsItsOwn) {
  FlightMemory memory = FlightMemory::create();
  memory.claim(1, 0, 2);  // The rank's.
  FlightRecorder recorder(watched_by(memory));
  recorder.join(0, 1);
  recorder.issue(all_reduce(0, 0, Stage::kDone));
  EXPECT_EQ(memory.read().issued, 0U);
  EXPECT_EQ(recorder.read().issued, 1U);
}

TEST(FlightRecorder, WorksWithoutALauncher) {
  for (const char* path : {"", "/proc/1/fd/1", "nonsense"}) {
    FlightRecorder recorder(Environment::of({{"LOCKSTEP_FLIGHT", path}}));
    recorder.join(0, 1);
    EXPECT_EQ(recorder.issue({}), 1U);
    EXPECT_EQ(recorder.read().rank, 0);
  }
}

TEST(FlightRecorder, TakesNotesOfSeveralThreads) {
  FlightRecorder recorder(Environment::of({}));
  recorder.join(0, 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        recorder.end(recorder.issue({}), true);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(recorder.read().issued, 2000U);
  EXPECT_EQ(recorder.read().ended, 2000U);
}

}  // namespace
}  // namespace lockstep::watch
