// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/write/publish.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_files.h"
#include "lockstep/storage/test_traced_child.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::storage {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

class Publish : public testing::Test {
 protected:
  Publish() {
    fs::create_directory(folder_ / "new");
    write_bytes(folder_ / "new" / "content", "new");
  }
  void make_target() {
    fs::create_directory(folder_ / "target");
    write_bytes(folder_ / "target" / "content", "old");
  }
  std::string target_content() const { return read_bytes(folder_ / "target" / "content"); }

  TestFolder folder_;
};

TEST_F(Publish, GivesTheNewFolderItsName) {
  publish(folder_ / "new", folder_ / "target", false);
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("target"));
  EXPECT_EQ(target_content(), "new");
}

TEST_F(Publish, DoesNotReplaceATakenName) {
  make_target();
  EXPECT_THAT(
      [&] { publish(folder_ / "new", folder_ / "target", false); },
      ThrowsMessage<CheckpointError>(AllOf(HasSubstr("target"), HasSubstr("File exists"))));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("new", "target"));
  EXPECT_EQ(target_content(), "old");
}

TEST_F(Publish, ReplacesAndRemovesTheOld) {
  make_target();
  publish(folder_ / "new", folder_ / "target", true);
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("target"));
  EXPECT_EQ(target_content(), "new");
}

TEST_F(Publish, ReplacesWhereNamesCannotBeExchanged) {
  make_target();
  const fs::path old = detail::replace_in_two_steps(folder_ / "new", folder_ / "target");
  EXPECT_EQ(target_content(), "new");
  EXPECT_EQ(read_bytes(old / "content"), "old");
}

TEST_F(Publish, IsNotDisturbedByACleanupBetweenTheTwoSteps) {
  make_target();
  const TracedChild child = run_traced(
      [&] {
        publish(folder_ / "new", folder_ / "target", true);
        return 0;
      },
      [&](long number) {
        EXPECT_TRUE(remove_stale(folder_.path()).empty());
        return number == SYS_renameat2 ? EINVAL : 0;
      });
  if (child.end == TracedChild::End::kCannotTrace) {
    GTEST_SKIP() << "processes cannot be traced here";
  }
  EXPECT_EQ(child.code, 0);
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("target"));
  EXPECT_EQ(target_content(), "new");
}

TEST_F(Publish, PutsTheOldBackIfTheNewCannotTakeItsPlace) {
  make_target();
  EXPECT_THROW(
      detail::replace_in_two_steps(folder_ / "absent", folder_ / "target"), CheckpointError);
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("new", "target"));
  EXPECT_EQ(target_content(), "old");
}

}  // namespace
}  // namespace lockstep::storage
