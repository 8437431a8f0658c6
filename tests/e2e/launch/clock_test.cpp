// SPDX-License-Identifier: Apache-2.0
// A clock that jumps by a year while a job runs (libfaketime): no time limit may notice it.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/run_command.h"
#include "tests/e2e/launch_harness.h"

namespace lockstep::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Where Debian's faketime keeps what it preloads; empty: there is none.
std::string faketime_library() {
  for (const auto& entry : std::filesystem::directory_iterator("/usr/lib")) {
    const std::filesystem::path path = entry.path() / "faketime" / "libfaketimeMT.so.1";
    if (std::filesystem::exists(path)) {
      return path;
    }
  }
  return "";
}

TEST(Clock, AJumpByAYearEndsNothing) {
  const std::string library = faketime_library();
  if (library.empty()) {
    GTEST_SKIP() << "there is no libfaketime here; install faketime";
  }
  const TestFolder folder;
  const std::string clock = (folder / "clock").string();
  std::ofstream(clock) << "+0\n";
  const std::string rank = "date +year\\ %Y; sleep 0.5; [ $RANK = 1 ] || echo +400d > " + clock +
                           "; sleep 1; date +year\\ %Y";
  const Outcome outcome = run_lockstep(
      launch(
          "2",
          {"--timeout", "60", "--stall-timeout", "30", "--max-restarts", "1", "sh", "-c", rank}),
      {"LD_PRELOAD=" + library,
       "FAKETIME_TIMESTAMP_FILE=" + clock,
       "FAKETIME_NO_CACHE=1",
       "FAKETIME_DONT_FAKE_MONOTONIC=1",
       "DONT_FAKE_MONOTONIC=1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string first = outcome.out.substr(0, outcome.out.find('\n') + 1);
  EXPECT_THAT(first, testing::StartsWith("year 20"));
  EXPECT_EQ(count(outcome.out, first), 2) << "the clock did not jump: " << outcome.out;
  EXPECT_EQ(count(outcome.out, "year "), 4) << outcome.out;
  EXPECT_THAT(outcome.err, Not(HasSubstr("time limit")));
}

}  // namespace
}  // namespace lockstep::e2e
