// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/sink.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {
namespace {

class SinkTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_.reset(ends[0]);
    write_.reset(ends[1]);
    ::fcntl(read_.get(), F_SETFL, O_NONBLOCK);
  }
  std::string what_arrived() const {
    std::string all;
    std::array<char, 65536> chunk;
    for (ssize_t size = 0; (size = ::read(read_.get(), chunk.data(), chunk.size())) > 0;) {
      all.append(chunk.data(), static_cast<size_t>(size));
    }
    return all;
  }
  UniqueFd read_;
  UniqueFd write_;
};

TEST_F(SinkTest, OneSourcePassesUnchanged) {
  Sink sink(write_.get());
  sink.write(0, "", "a");
  sink.write(0, "", "b\nc");
  sink.write(0, "", "\r\n");
  sink.flush();
  EXPECT_EQ(what_arrived(), "ab\nc\r\n");
}

TEST_F(SinkTest, AnUnfinishedLineIsEndedBeforeAnotherSourceWrites) {
  Sink sink(write_.get());
  sink.write(0, "[0] ", "half");
  sink.write(1, "[1] ", "line\n");
  sink.write(0, "[0] ", "other half");
  sink.write(0, "[0] ", " ends\n");
  sink.flush();
  EXPECT_EQ(what_arrived(), "[0] half\n[1] line\n[0] other half ends\n");
}

TEST_F(SinkTest, ALineClearsTheBarThatTheTerminalShowsLast) {
  bool bar = false;
  Sink out(write_.get(), &bar);
  Sink err(write_.get(), &bar);
  const auto write = [](Sink& sink, const char* text) {
    sink.write(0, "", text);
    sink.flush();
  };
  write(err, "bar 1\r");
  write(err, "bar 2\r");
  write(out, "line\n");
  write(out, "another\n");
  write(err, "bar 3\r");
  write(err, "log\n");
  EXPECT_EQ(what_arrived(), "bar 1\rbar 2\r\r\x1b[Kline\nanother\nbar 3\r\r\x1b[Klog\n");
}

TEST_F(SinkTest, NeverBlocksAndSaysWhenItIsFull) {
  Sink sink(write_.get());
  const std::string line = std::string(999, 'x') + "\n";
  std::string expected;
  while (!sink.full()) {
    sink.write(0, "", line);
    expected += line;
    sink.flush();
  }
  std::string arrived;
  while (!sink.empty()) {
    arrived += what_arrived();
    sink.flush();
  }
  arrived += what_arrived();
  EXPECT_EQ(arrived, expected);
  EXPECT_FALSE(sink.full());
}

TEST_F(SinkTest, AClosedReaderIsAnErrorOnce) {
  ::signal(SIGPIPE, SIG_IGN);
  Sink sink(write_.get());
  read_.reset();
  sink.write(0, "", "line\n");
  sink.flush();
  EXPECT_EQ(sink.error(), EPIPE);
  sink.write(0, "", "line\n");
  EXPECT_TRUE(sink.empty());
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace lockstep::launcher
