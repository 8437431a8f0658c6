// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/flight_dump.h"

#include <fstream>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/watch/test_views.h"

namespace lockstep::watch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

FlightDump some_dump() {
  FlightDump dump{
      .run_id = "abc",
      .why = "rank 1 \"hangs\"",
      .time = "2026-01-02T03:04:05Z",
      .now_ns = 99,
      .ranks = {view_of(0, {all_reduce(1, 5, Stage::kDone), all_reduce(2, 6, Stage::kRunning)})}};
  dump.ranks.push_back(view_of(1, {}));
  dump.ranks[1].running = false;
  dump.ranks[1].host = "node7";
  dump.ranks[1].process.state = 'T';
  dump.ranks[1].pid = 4711;
  dump.ranks[1].stopped_ns = 12;
  dump.ranks[1].record.world = 2;
  return dump;
}

TEST(FlightDump, IsReadAsItWasWritten) {
  const TestFolder folder;
  const auto path = folder / "flight.json";
  write_dump(some_dump(), path);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  const FlightDump read = read_dump(path);
  EXPECT_EQ(read.run_id, "abc");
  EXPECT_EQ(read.why, "rank 1 \"hangs\"");
  EXPECT_EQ(read.now_ns, 99);
  ASSERT_EQ(read.ranks.size(), 2U);
  ASSERT_EQ(read.ranks[0].record.operations.size(), 2U);
  EXPECT_EQ(read.ranks[0].record.operations[1].describe(), "all_reduce(sum) of float32[10]");
  EXPECT_EQ(read.ranks[0].record.operations[1].stage, Stage::kRunning);
  EXPECT_EQ(describe(read.ranks[0], 99), describe(some_dump().ranks[0], 99));
  EXPECT_FALSE(read.ranks[1].running);
  EXPECT_EQ(read.ranks[1].host, "node7");
  EXPECT_EQ(read.ranks[1].process.state, 'T');
  EXPECT_EQ(read.ranks[1].pid, 4711);
  EXPECT_EQ(read.ranks[1].stopped_ns, 12);
  EXPECT_EQ(read.ranks[1].record.world, 2);
}

TEST(FlightDump, IsCompleteOrAbsent) {
  const TestFolder folder;
  EXPECT_THROW(write_dump(some_dump(), folder / "none" / "flight.json"), Error);
  std::filesystem::create_directory(folder / "taken");
  EXPECT_ANY_THROW(write_dump(some_dump(), folder / "taken"));
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    ++files;
  }
  EXPECT_EQ(files, 1U);
}

TEST(FlightDump, NamesAFileThatIsNotADump) {
  const TestFolder folder;
  const auto refuses = [&](const char* text, const char* what) {
    std::ofstream(folder / "x.json") << text;
    EXPECT_THAT(
        [&] { read_dump(folder / "x.json"); },
        ThrowsMessage<ConfigError>(AllOf(HasSubstr("x.json"), HasSubstr(what))));
  };
  refuses("", "is not a complete flight dump");
  refuses("[]", "is not a complete flight dump");
  refuses("{}", "is not a flight dump");
  refuses(R"({"format": "lockstep-flight", "version": 1})", "of version 1; expected version 2");
  refuses(R"({"format": "lockstep-flight", "version": 2})", "is not a complete flight dump");
  EXPECT_THAT(
      [&] { read_dump(folder / "none.json"); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("none.json"), HasSubstr("cannot be read"))));
}

}  // namespace
}  // namespace lockstep::watch
