// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/atomic_file.h"

#include <fstream>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(AtomicFile, IsThereForItsOwnerOnceRenamed) {
  const TestFolder folder;
  AtomicFile file(folder / "a");
  file.write("text");
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_TRUE(file.rename_to(folder / "a", false));
  EXPECT_EQ(contents(folder / "a"), "text");
  struct stat status {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST(AtomicFile, ReplacesAnExistingFileOnlyOnRequest) {
  const TestFolder folder;
  std::ofstream(folder / "a") << "old";
  {
    AtomicFile file(folder / "a");
    file.write("new");
    EXPECT_FALSE(file.rename_to(folder / "a", false));
    EXPECT_EQ(contents(folder / "a"), "old");
  }
  AtomicFile file(folder / "a");
  file.write("new");
  EXPECT_TRUE(file.rename_to(folder / "a", true));
  EXPECT_EQ(contents(folder / "a"), "new");
}

TEST(AtomicFile, HasTheGivenPermissions) {
  const TestFolder folder;
  write_atomically(folder / "a", "text", 0644);
  EXPECT_EQ(contents(folder / "a"), "text");
  struct stat status {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0644U);
}

TEST(AtomicFile, LeavesNothingIfItWasNotRenamed) {
  const TestFolder folder;
  { AtomicFile(folder / "a").write("text"); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(AtomicFile, NamesAFileThatCannotBeWritten) {
  EXPECT_THAT(
      [] { AtomicFile("/proc/none/a"); },
      testing::ThrowsMessage<Error>(HasSubstr("/proc/none/a] cannot be written")));
}

}  // namespace
}  // namespace lockstep
