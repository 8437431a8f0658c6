// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/write/temp_folder.h"

#include <chrono>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_checkpoints.h"
#include "lockstep/storage/test_traced_child.h"

namespace lockstep::storage {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
namespace fs = std::filesystem;

/// Makes a folder as a process of that number would have left it.
fs::path left_by(pid_t pid, const fs::path& name) {
  fs::path folder = with_pid(name, pid);
  fs::create_directory(folder);
  write_bytes(folder / "model.safetensors", "half");
  return folder;
}

TEST(TempFolder, NamesAreUnlikeEachOtherAndRecognised) {
  const fs::path first = temporary_name("runs/step_1");
  EXPECT_NE(first, temporary_name("runs/step_1"));
  EXPECT_EQ(first.parent_path(), "runs");
  EXPECT_TRUE(first.filename().native().starts_with("step_1.tmp-"));
  EXPECT_TRUE(is_temporary_name(first.filename().native()));
  EXPECT_TRUE(is_temporary_name(set_aside_name("step.tmp-1").native()));
  EXPECT_TRUE(is_temporary_name("a.tmp-host-with-dashes-12-0123456789abcdef"));
  for (const char* name :
       {"step_1",
        "step_1.tmp-",
        "step_1.tmp-host",
        "a.tmp-h-12-0123",
        ".tmp-h-12-0123456789abcdef",
        "a.tmp-h-x-0123456789abcdef",
        "a.tmp-h--1-0123456789abcdeg",
        "a.tmp-12-0123456789abcdef"}) {
    EXPECT_FALSE(is_temporary_name(name)) << name;
  }
}

TEST(TempFolder, IsPrivateAndNew) {
  const TestFolder folder;
  const OwnedFolder owned(folder / "a");
  struct stat status {};
  ASSERT_EQ(stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  EXPECT_THROW(OwnedFolder(folder / "a"), CheckpointError);
}

TEST(TempFolder, LeftoversOfADeadProcessAreRemoved) {
  const TestFolder folder;
  const fs::path stale = left_by(dead_pid(), temporary_name(folder / "step_1"));
  EXPECT_THAT(remove_stale(folder.path()), ElementsAre(stale));
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(TempFolder, AFolderInUseStays) {
  const TestFolder folder;
  const fs::path path = temporary_name(folder / "step_1");
  std::optional<OwnedFolder> owned(path);
  EXPECT_THAT(remove_stale(folder.path()), IsEmpty());
  owned.reset();
  EXPECT_THAT(remove_stale(folder.path()), ElementsAre(path));
}

TEST(TempFolder, AnUnmarkedFolderIsRemovedThoughItsPidIsReused) {
  const TestFolder folder;
  const fs::path left = left_by(getppid(), temporary_name(folder / "step_1"));
  const fs::path marked = left_by(getppid(), temporary_name(folder / "step_2"));
  UniqueFd mark = mark_as_in_use(marked);
  EXPECT_FALSE(mark_as_in_use(marked).is_open()) << "it is marked already";
  EXPECT_THAT(remove_stale(folder.path()), ElementsAre(left));
  mark = UniqueFd();
  EXPECT_THAT(remove_stale(folder.path()), ElementsAre(marked));
  EXPECT_FALSE(mark_as_in_use(marked).is_open()) << "it is gone";
}

/// Sets the time of the last change to `hours` ago.
void age(const fs::path& folder, std::chrono::hours hours) {
  const auto then = fs::file_time_type::clock::now() - hours;
  for (const auto& entry : fs::directory_iterator(folder)) {
    fs::last_write_time(entry.path(), then);
  }
  fs::last_write_time(folder, then);
}

TEST(TempFolder, LeftoversOfAnotherHostAreRemovedADayAfterTheLastWrite) {
  const TestFolder folder;
  const fs::path left = folder / "step_1.tmp-elsewhere-1-0123456789abcdef";
  fs::create_directory(left);
  write_bytes(left / "model.safetensors", "half");
  EXPECT_THAT(remove_stale(folder.path()), IsEmpty());
  age(left, std::chrono::hours(23));
  EXPECT_THAT(remove_stale(folder.path()), IsEmpty());
  age(left, std::chrono::hours(25));
  fs::last_write_time(left / "model.safetensors", fs::file_time_type::clock::now());
  EXPECT_THAT(remove_stale(folder.path()), IsEmpty()) << "a long file may be being written";
  age(left, std::chrono::hours(25));
  {
    const UniqueFd mark = mark_as_in_use(left);
    EXPECT_THAT(remove_stale(folder.path()), IsEmpty());
  }
  EXPECT_THAT(remove_stale(folder.path()), ElementsAre(left));
}

TEST(TempFolder, AFileIsRemovedOnceItsProcessHasEndedOrADayHasPassed) {
  const TestFolder folder;
  const fs::path file = write_bytes(temporary_name(folder / "latest"), "step_1");
  EXPECT_THAT(remove_stale(folder.path()), IsEmpty());
  fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(25));
  EXPECT_THAT(remove_stale(folder.path()), ElementsAre(file));
}

TEST(TempFolder, IsCreatedAgainIfACleanupRunsBeforeItIsMarked) {
  for (const long moment : {SYS_openat, SYS_flock}) {
    const TestFolder folder;
    const fs::path path = temporary_name(folder / "step_1");
    size_t removed = 0;
    const TracedChild child = run_traced(
        [&] {
          const OwnedFolder owned(path);
          return fs::exists(path) ? 0 : 1;
        },
        [&](long number) {
          removed += number == moment && removed < 3 ? remove_stale(folder.path()).size() : 0;
          return 0;
        });
    if (child.end == TracedChild::End::kCannotTrace) {
      GTEST_SKIP() << "processes cannot be traced here";
    }
    EXPECT_EQ(child.code, 0) << moment;
    EXPECT_EQ(removed, 3U) << moment;
  }
}

TEST(TempFolder, FreshFoldersOfOtherHostsAndUnownedOnesStay) {
  const TestFolder folder;
  fs::create_directory(folder / "step_1.tmp-elsewhere-1-0123456789abcdef");
  fs::create_directory(folder / "step_1.tmp-notes");
  write_bytes(temporary_name(folder / "file"), "");
  fs::create_directory(folder / "outside");
  fs::create_directory_symlink(folder / "outside", temporary_name(folder / "link"));
  const auto before = names_in(folder.path());
  EXPECT_THAT(remove_stale(folder.path()), IsEmpty());
  EXPECT_EQ(names_in(folder.path()), before);
}

TEST(TempFolder, ACheckpointSetAsideGetsItsNameBackUnlessItIsTaken) {
  const TestFolder folder;
  left_by(dead_pid(), set_aside_name(folder / "step_1"));
  left_by(dead_pid(), set_aside_name(folder / "step_2"));
  fs::create_directory(folder / "step_2");
  EXPECT_EQ(remove_stale(folder.path()).size(), 2U);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_1", "step_2"));
  EXPECT_EQ(read_bytes(folder / "step_1" / "model.safetensors"), "half");
  EXPECT_THAT(names_in(folder / "step_2"), IsEmpty());
}

TEST(TempFolder, AnAbsentParentHoldsNothing) {
  EXPECT_THAT(remove_stale("/nonexistent/folder"), IsEmpty());
}

}  // namespace
}  // namespace lockstep::storage
