// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/file/spool.h"

#include <atomic>
#include <csignal>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/tracking/test_folder.h"

namespace lockstep::tracking {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Lines = std::vector<std::string>;

constexpr milliseconds kLimit{60000};

/// Collects what a spool delivers.
struct Inbox {
  std::mutex mutex;
  Lines lines;

  Spool::Deliver deliver(size_t most = 1000) {
    return [this, most](const Lines& all) {
      const std::lock_guard lock(mutex);
      const size_t count = std::min(most, all.size());
      lines.insert(lines.end(), all.begin(), all.begin() + static_cast<ptrdiff_t>(count));
      return count;
    };
  }
};

Spool::Options quick() {
  return {.batch_lines = 3, .first_pause = milliseconds(1), .max_pause = milliseconds(4)};
}

TEST(Spool, DeliversLinesInOrderAndInBatches) {
  const TestFolder folder;
  Inbox inbox;
  Spool spool(folder / "s", quick(), inbox.deliver(2));
  Lines expected;
  for (int i = 0; i < 20; ++i) {
    expected.push_back("line " + std::to_string(i));
    spool.append(expected.back());
  }
  ASSERT_TRUE(spool.wait_until_delivered(kLimit));
  EXPECT_EQ(inbox.lines, expected);
  spool.close();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Spool, AppendDoesNotWaitForADelivery) {
  const TestFolder folder;
  std::promise<void> release;
  const auto released = release.get_future().share();
  Spool spool(folder / "s", quick(), [&](const Lines& lines) {
    released.wait();
    return lines.size();
  });
  for (int i = 0; i < 10000; ++i) {
    spool.append("line");
  }
  EXPECT_EQ(lines_of(folder / "s").size(), 10000U);
  EXPECT_FALSE(spool.wait_until_delivered(milliseconds(0)));
  release.set_value();
  EXPECT_TRUE(spool.wait_until_delivered(kLimit));
}

TEST(Spool, TriesAgainWhatCouldNotBeDelivered) {
  const TestFolder folder;
  Inbox inbox;
  std::atomic<int> attempts{0};
  Spool spool(folder / "s", quick(), [&](const Lines& lines) {
    return ++attempts < 4 ? 0 : inbox.deliver()(lines);
  });
  spool.append("a");
  ASSERT_TRUE(spool.wait_until_delivered(kLimit));
  EXPECT_THAT(inbox.lines, ElementsAre("a"));
  EXPECT_EQ(attempts, 4);
}

TEST(Spool, ALaterSpoolDeliversTheRest) {
  const TestFolder folder;
  Inbox first;
  {
    Spool spool(folder / "s", quick(), [&](const Lines& lines) {
      return first.lines.empty() ? first.deliver(1)(lines) : 0;
    });
    spool.append("a");
    ASSERT_TRUE(spool.wait_until_delivered(kLimit));
    spool.append("b");
    spool.append("c");
  }
  EXPECT_THAT(first.lines, ElementsAre("a"));
  Inbox second;
  Spool spool(folder / "s", quick(), second.deliver());
  ASSERT_TRUE(spool.wait_until_delivered(kLimit));
  EXPECT_THAT(second.lines, ElementsAre("b", "c"));
}

TEST(Spool, TheLinesOfAKilledProcessAreDeliveredByTheNext) {
  const TestFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Spool spool(folder / "s", quick(), [](const Lines&) { return size_t{0}; });
    spool.append("a");
    spool.append("b");
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  write_text(folder / "s", contents(folder / "s") + "torn");
  Inbox inbox;
  Spool spool(folder / "s", quick(), inbox.deliver());
  spool.append("c");
  ASSERT_TRUE(spool.wait_until_delivered(kLimit));
  EXPECT_THAT(inbox.lines, ElementsAre("a", "b", "torn", "c"));
}

TEST(Spool, IsUsedByOneProcessAtATime) {
  const TestFolder folder;
  Inbox inbox;
  const Spool spool(folder / "s", quick(), inbox.deliver());
  EXPECT_THAT(
      [&] { Spool(folder / "s", quick(), inbox.deliver()); },
      ThrowsMessage<ConfigError>(HasSubstr("another process sends this file")));
}

TEST(Spool, AnImpossibleDeliveryIsReportedOnceAndKeepsTheLines) {
  const TestFolder folder;
  Lines warnings;
  set_log_sink([&](const std::string& line) { warnings.push_back(line); });
  {
    Spool spool(folder / "s", quick(), [](const Lines&) -> size_t {
      throw std::runtime_error("the server has gone");
    });
    spool.append("a");
    EXPECT_FALSE(spool.wait_until_delivered(kLimit));
    spool.append("b");
    EXPECT_EQ(spool.pending_bytes(), 4);
    spool.close();
  }
  set_log_sink(nullptr);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("the server has gone; its lines are kept in"));
  EXPECT_THAT(lines_of(folder / "s"), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace lockstep::tracking
