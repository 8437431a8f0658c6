// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/log_files.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::launcher {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

unsigned mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777U;
}

const LogFile::ShowMessage kSilent = [](const std::string& text) { ADD_FAILURE() << text; };

TEST(LogFolder, HasTorchrunsLayoutForTheOwnerAlone) {
  const TestFolder folder;
  const LogFolder logs(folder / "new/logs", "run7");
  auto files = logs.open(2, {{.out = true, .err = true}, {.out = false, .err = true}}, kSilent);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[1].out, nullptr);
  files[1].err->write("hello\n");
  const auto attempt = folder / "new/logs/run7/attempt_2";
  EXPECT_EQ(contents(attempt / "1/stderr.log"), "hello\n");
  EXPECT_TRUE(std::filesystem::exists(attempt / "0/stdout.log"));
  EXPECT_FALSE(std::filesystem::exists(attempt / "1/stdout.log"));
  EXPECT_EQ(mode_of(attempt), 0700U);
  EXPECT_EQ(mode_of(attempt / "1/stderr.log"), 0600U);
}

TEST(LogFolder, AppendsToExistingFiles) {
  const TestFolder folder;
  for (const char* text : {"first\n", "second\n"}) {
    const LogFolder logs(folder.path(), "run");
    logs.open(0, {{.out = true, .err = false}}, kSilent)[0].out->write(text);
  }
  EXPECT_EQ(contents(folder / "run/attempt_0/0/stdout.log"), "first\nsecond\n");
}

TEST(LogFolder, RefusesAFileInTheWayAndALinkOutside) {
  const TestFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_THAT(
      [&] { LogFolder(folder / "file", "run"); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("Not a directory"), HasSubstr("--log-dir"))));
  const LogFolder logs(folder.path(), "run");
  std::filesystem::create_directories(folder / "run/attempt_0/0");
  std::filesystem::create_symlink(folder / "file", folder / "run/attempt_0/0/stdout.log");
  EXPECT_THAT(
      [&] { logs.open(0, {{.out = true, .err = false}}, kSilent); },
      ThrowsMessage<ConfigError>(HasSubstr("stdout.log")));
  EXPECT_EQ(contents(folder / "file"), "x");
}

TEST(LogFolder, IsATemporaryOneWhereNoneIsNamed) {
  const TestFolder folder;
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  const LogFolder logs("", "run");
  ::unsetenv("TMPDIR");
  EXPECT_THAT(logs.path(), AllOf(testing::StartsWith(folder.path().string()), HasSubstr("/run")));
  EXPECT_EQ(mode_of(logs.path()), 0700U);
}

TEST(LogFile, SaysOnceThatTheDiskIsFullAndDropsTheRest) {
  int said = 0;
  std::string text;
  LogFile full(
      "/dev/full", UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)), [&](const auto& t) {
        ++said;
        text = t;
      });
  EXPECT_FALSE(full.has_failed());
  full.write("one\n");
  full.write("two\n");
  EXPECT_TRUE(full.has_failed());
  EXPECT_EQ(said, 1);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"), HasSubstr("the job continues")));
}

}  // namespace
}  // namespace lockstep::launcher
