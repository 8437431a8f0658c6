// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/flight_memory.h"

#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/watch/test_views.h"

namespace lockstep::watch {
namespace {

TEST(FlightMemory, ShowsTheRecordOfAKilledProcess) {
  FlightMemory memory = FlightMemory::create();
  const pid_t child = ::fork();
  if (child == 0) {
    auto mine = FlightMemory::open(memory.path());
    if (mine && mine->claim(::getpid(), 3, 4)) {
      mine->write(all_reduce(1, 5, Stage::kDone));
      mine->write(all_reduce(2, 6, Stage::kIssued));
      mine->set_step(7);
      ::kill(::getpid(), SIGKILL);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const FlightRecord record = memory.read();
  EXPECT_EQ(record.pid, child);
  EXPECT_EQ(record.rank, 3);
  EXPECT_EQ(record.world, 4);
  EXPECT_EQ(record.step, 7);
  EXPECT_EQ(record.issued, 2U);
  EXPECT_EQ(record.ended, 1U);
  EXPECT_GT(record.progress_ns, 0);
  ASSERT_EQ(record.operations.size(), 2U);
  EXPECT_EQ(record.operations[1].describe(), "all_reduce(sum) of float32[10]");
  EXPECT_EQ(record.operations[1].stage, Stage::kIssued);
}

TEST(FlightMemory, KeepsTheLastOperationsInOrder) {
  FlightMemory memory = FlightMemory::create();
  const uint64_t all = FlightMemory::kOperations + 10;
  for (uint64_t number = 1; number <= all; ++number) {
    memory.write(all_reduce(number, 1, Stage::kDone));
  }
  const FlightRecord record = memory.read();
  ASSERT_EQ(record.operations.size(), FlightMemory::kOperations);
  EXPECT_EQ(record.operations.front().number, 11U);
  EXPECT_EQ(record.operations.back().number, all);
  EXPECT_FALSE(memory.find(10));
  EXPECT_TRUE(memory.find(11));
}

TEST(FlightMemory, BelongsToTheFirstProcessThatClaimsIt) {
  FlightMemory memory = FlightMemory::create();
  EXPECT_TRUE(memory.claim(10, 0, 1));
  EXPECT_TRUE(memory.claim(10, 0, 1));
  EXPECT_FALSE(memory.claim(11, 1, 2));
  EXPECT_EQ(memory.read().pid, 10);
}

TEST(FlightMemory, TakesNothingElseForARecord) {
  EXPECT_FALSE(FlightMemory::open("/proc/self/fd/99999"));
  EXPECT_FALSE(FlightMemory::open("/dev/null"));
  EXPECT_FALSE(FlightMemory::open("/proc/self/exe"));
  // A file of the same size without seals, which could be truncated while it is mapped.
  FlightMemory real = FlightMemory::create();
  const int source = ::open(real.path().c_str(), O_RDONLY);
  const off_t bytes = ::lseek(source, 0, SEEK_END);
  ::close(source);
  const int fd = ::memfd_create("other", 0);
  ASSERT_EQ(::ftruncate(fd, bytes), 0);
  EXPECT_FALSE(FlightMemory::open("/proc/self/fd/" + std::to_string(fd)));
  ::close(fd);
}

/// Detects a read during a write by fields that must agree.
TEST(FlightMemory, NeverShowsHalfAnOperation) {
  FlightMemory memory = FlightMemory::create();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t number = 1; !stop; ++number) {
      Operation operation = all_reduce(number, static_cast<int64_t>(number), Stage::kDone);
      operation.sizes.fill(static_cast<int64_t>(number));
      memory.write(operation);
    }
  });
  while (memory.read().issued < 100'000) {
    for (const Operation& operation : memory.read().operations) {
      for (const int64_t size : operation.sizes) {
        ASSERT_EQ(size, static_cast<int64_t>(operation.number));
      }
    }
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace lockstep::watch
