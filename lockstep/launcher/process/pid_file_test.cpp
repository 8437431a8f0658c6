// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/pid_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::launcher {
namespace {

TEST(PidFile, HoldsThePidWhileItLivesAndReplacesAnOlderOne) {
  const TestFolder folder;
  std::ofstream(folder / "pid") << "12345678\n";
  {
    const PidFile file(folder / "pid");
    std::ifstream stream(folder / "pid");
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_EQ(text, std::to_string(::getpid()) + "\n");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(PidFile, RefusesAPlaceWhereNoneCanBe) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { PidFile(folder / "no/pid"); },
      testing::ThrowsMessage<ConfigError>(testing::HasSubstr("no/pid: No such file")));
  EXPECT_THROW(PidFile{folder.path()}, ConfigError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lockstep::launcher
