// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/line_forwarder.h"

#include <array>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::launcher {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  UniqueFd read;
  UniqueFd write;
};

std::unique_ptr<LogFile> open_log(const std::string& path) {
  return std::make_unique<LogFile>(
      path,
      UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)),
      [](const std::string& /*text*/) {});
}

/// Three ranks, one sink.
class LineForwarderTest : public testing::Test {
 protected:
  LineForwarder pump_for(int rank, const std::string& prefix = "", size_t kept_lines = 3) {
    return {std::move(ranks_[static_cast<size_t>(rank)].read), sink_, rank, prefix, kept_lines};
  }
  void say(int rank, const std::string& text, LineForwarder& pump) {
    ASSERT_EQ(
        ::write(ranks_[static_cast<size_t>(rank)].write.get(), text.data(), text.size()),
        static_cast<ssize_t>(text.size()));
    for (pollfd item{.fd = pump.fd(), .events = POLLIN, .revents = 0}; ::poll(&item, 1, 0) == 1;) {
      pump.pump();
    }
  }
  std::string shown() {
    std::string all;
    std::array<char, 65536> chunk;
    do {
      sink_.flush();
      for (ssize_t size = 0; (size = ::read(screen_.read.get(), chunk.data(), chunk.size())) > 0;) {
        all.append(chunk.data(), static_cast<size_t>(size));
      }
    } while (!sink_.empty());
    return all;
  }
  std::array<Pipe, 3> ranks_;
  Pipe screen_;
  Sink sink_{screen_.write.get()};
};

TEST_F(LineForwarderTest, OnlyCompleteLinesAreShown) {
  LineForwarder first = pump_for(0);
  LineForwarder second = pump_for(1);
  say(0, "one\nhal", first);
  say(1, "two\n", second);
  EXPECT_EQ(shown(), "one\ntwo\n");
  say(0, "f\n", first);
  EXPECT_EQ(shown(), "half\n");
}

TEST_F(LineForwarderTest, EachLineHasItsPrefix) {
  LineForwarder pump = pump_for(0, "[rank 0] ");
  say(0, "a\n\nb\r\nc\r", pump);
  EXPECT_EQ(shown(), "[rank 0] a\n[rank 0] \n[rank 0] b\r\n[rank 0] c\r");
}

TEST_F(LineForwarderTest, AReturnIsShownAtOnceAndNotRemembered) {
  LineForwarder pump = pump_for(0);
  say(0, "10%\r", pump);
  EXPECT_EQ(shown(), "10%\r");
  say(0, "20%\rdone\n", pump);
  EXPECT_EQ(shown(), "20%\rdone\n");
  EXPECT_THAT(pump.last_lines(), ElementsAre("done"));
}

TEST_F(LineForwarderTest, ALineEndCutInTwoIsStillOne) {
  LineForwarder pump = pump_for(0, "> ");
  say(0, "a\r", pump);
  say(0, "\nb\n", pump);
  EXPECT_EQ(shown(), "> a\r\n> b\n");
}

TEST_F(LineForwarderTest, AnUnfinishedLineIsShownAtTheEnd) {
  LineForwarder pump = pump_for(0);
  say(0, "last words", pump);
  EXPECT_EQ(shown(), "");
  ranks_[0].write.reset();
  pump.pump();
  EXPECT_FALSE(pump.is_open());
  EXPECT_EQ(shown(), "last words");
  EXPECT_THAT(pump.last_lines(), ElementsAre("last words"));
}

TEST_F(LineForwarderTest, ATooLongLineIsShownInParts) {
  LineForwarder pump = pump_for(0);
  const std::string part(LineForwarder::kLongestLineBytes / 2, 'x');
  say(0, part, pump);
  EXPECT_EQ(shown(), "");
  say(0, part, pump);
  say(0, "y", pump);
  say(0, "z\n", pump);
  EXPECT_EQ(shown(), part + part + "yz\n");
}

TEST_F(LineForwarderTest, RemembersTheLastLinesCut) {
  LineForwarder pump = pump_for(0, "", 2);
  say(0, "1\n2\n3\r\n" + std::string(600, 'x') + "\n", pump);
  EXPECT_THAT(pump.last_lines(), ElementsAre("3", std::string(500, 'x') + "..."));
  LineForwarder forgetful = pump_for(1, "", 0);
  say(1, "1\n", forgetful);
  EXPECT_THAT(forgetful.last_lines(), IsEmpty());
}

TEST_F(LineForwarderTest, DrainReadsAvailableBytesAndDoesNotWaitForMore) {
  LineForwarder pump = pump_for(0);
  const std::string text = std::string(40000, 'x') + "\nrest";
  ASSERT_EQ(
      ::write(ranks_[0].write.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  pump.drain();
  EXPECT_FALSE(pump.is_open());
  EXPECT_EQ(shown(), text);
}

TEST_F(LineForwarderTest, CopiesEveryByteToItsFileAndShowsItOrNot) {
  const TestFolder folder;
  for (const Shown shown_when : {Shown::kAlways, Shown::kWithoutFile, Shown::kNever}) {
    const std::string path = folder / std::to_string(static_cast<int>(shown_when));
    LineForwarder pump = pump_for(static_cast<int>(shown_when), "> ");
    pump.copy_to(open_log(path), shown_when);
    say(static_cast<int>(shown_when), "one\rtwo\nhalf", pump);
    pump.drain();
    EXPECT_EQ(contents(path), "one\rtwo\nhalf");
    EXPECT_EQ(shown(), shown_when == Shown::kAlways ? "> one\r> two\n> half" : "");
    EXPECT_THAT(pump.last_lines(), ElementsAre("two", "half"));
    EXPECT_EQ(pump.file(), path);
  }
}

TEST_F(LineForwarderTest, LinesThatCannotBeWrittenToTheirFileAreShown) {
  LineForwarder pump = pump_for(0);
  pump.copy_to(open_log("/dev/full"), Shown::kWithoutFile);
  say(0, "line\n", pump);
  EXPECT_EQ(shown(), "line\n");
  LineForwarder hidden = pump_for(1);
  hidden.copy_to(open_log("/dev/full"), Shown::kNever);
  say(1, "line\n", hidden);
  EXPECT_EQ(shown(), "");
}

}  // namespace
}  // namespace lockstep::launcher
