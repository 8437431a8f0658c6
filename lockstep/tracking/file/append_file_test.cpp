// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/file/append_file.h"

#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tracking/test_folder.h"

namespace lockstep::tracking {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(AppendFile, CreatesOnlyAMissingFile) {
  const TestFolder folder;
  AppendFile first;
  EXPECT_TRUE(first.create(folder.path() / "a"));
  first.append("one");
  AppendFile second;
  EXPECT_FALSE(second.create(folder.path() / "a"));
  EXPECT_EQ(contents(folder.path() / "a"), "one");
}

TEST(AppendFile, RecordsReachTheFileAtOnce) {
  const TestFolder folder;
  AppendFile file;
  file.open(folder.path() / "a");
  file.append("one");
  EXPECT_EQ(contents(file.path()), "one");
  file.append("two");
  file.append("");
  EXPECT_EQ(contents(file.path()), "onetwo");
  EXPECT_NO_THROW(file.sync());
}

TEST(AppendFile, OpensAnExistingFileAndReportsItsLastByte) {
  const TestFolder folder;
  {
    AppendFile file;
    file.open(folder.path() / "a");
    EXPECT_EQ(file.last_byte(), std::nullopt);
    file.append("one");
    file.close();
    file.close();
  }
  AppendFile file;
  file.open(folder.path() / "a");
  EXPECT_EQ(file.last_byte(), 'e');
  file.append("two");
  EXPECT_EQ(contents(file.path()), "onetwo");
}

TEST(AppendFile, AFileThatCannotBeOpenedIsAConfigErrorWithPathAndReason) {
  const TestFolder folder;
  const auto path = folder.path() / "missing" / "a";
  AppendFile file;
  const auto message =
      AllOf(HasSubstr("[" + path.string() + "]"), HasSubstr("No such file or directory"));
  EXPECT_THAT([&] { file.open(path); }, ThrowsMessage<ConfigError>(message));
  EXPECT_THAT([&] { file.create(path); }, ThrowsMessage<ConfigError>(message));
}

TEST(AppendFile, AFullDiskIsAnErrorWithPathAndReason) {
  AppendFile file;
  file.open("/dev/full");
  EXPECT_THAT(
      [&] { file.append("x"); },
      ThrowsMessage<Error>(AllOf(HasSubstr("[/dev/full]"), HasSubstr("No space left on device"))));
}

int append_until_full(const std::filesystem::path& folder) {
  AppendFile file;
  file.open(folder / "a");
  file.append("0123456789");
  try {
    file.append("abcdefghij");
  } catch (const Error&) {
    file.append("xyz");  // Smaller, and fits.
    return 0;
  }
  return 1;
}

TEST(AppendFile, ARecordThatFitsOnlyInPartIsRemoved) {
  const TestFolder folder;
  EXPECT_EQ(run_with_file_limit(15, &append_until_full, folder.path()), 0);
  EXPECT_EQ(contents(folder.path() / "a"), "0123456789xyz");
}

TEST(MakeFolders, CreatesParentsAndIsSafeToRepeat) {
  const TestFolder folder;
  make_folders(folder.path() / "a" / "b");
  make_folders(folder.path() / "a" / "b");
  EXPECT_TRUE(std::filesystem::is_directory(folder.path() / "a" / "b"));
}

TEST(MakeFolders, AnImpossibleFolderIsAConfigErrorThatNamesIt) {
  const TestFolder folder;
  AppendFile file;
  file.open(folder.path() / "a");
  EXPECT_THAT(
      [&] { make_folders(folder.path() / "a"); },
      ThrowsMessage<ConfigError>(HasSubstr((folder.path() / "a").string())));
  EXPECT_THAT(
      [&] { make_folders(folder.path() / "a" / "b"); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr((folder.path() / "a" / "b").string()), HasSubstr("Not a directory"))));
}

}  // namespace
}  // namespace lockstep::tracking
