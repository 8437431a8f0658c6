// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/catalog/retention.h"

#include <algorithm>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_checkpoints.h"
#include "lockstep/storage/test_traced_child.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

class Retention : public CheckpointsTest {
 protected:
  std::vector<fs::path> prune_to(int keep) { return prune(folder_.path(), {.keep = keep}); }
};

TEST_F(Retention, RemovesTheOldestByTheOrderOfCommits) {
  save("step_9");
  save("step_10");
  save("a_third");
  EXPECT_THAT(prune_to(4), IsEmpty());
  EXPECT_THAT(prune_to(3), IsEmpty());
  save("step_9");  // Again: now it is the newest.
  EXPECT_THAT(prune_to(2), ElementsAre(folder_ / "step_10"));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("a_third", "step_9"));
  save("b_fourth");
  save("b_fifth");
  EXPECT_THAT(
      prune_to(1), ElementsAre(folder_ / "a_third", folder_ / "step_9", folder_ / "b_fourth"));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("b_fifth"));
}

TEST_F(Retention, TheTargetOfALinkIsNeitherRemovedNorCounted) {
  const TestFolder other_disk;
  save("one");
  for (const char* name : {"two", "four"}) {
    fs::rename(save(name), other_disk / name);
    fs::create_directory_symlink(other_disk / name, folder_ / name);
    save(name == std::string("two") ? "three" : "five");
  }
  EXPECT_THAT(prune_to(2), ElementsAre(folder_ / "one"));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("five", "four", "three", "two"));
  EXPECT_TRUE(fs::exists(folder_ / "two" / kManifestName));
}

TEST_F(Retention, ADryRunSaysTheSameAndRemovesNothing) {
  save("one");
  save("two");
  EXPECT_THAT(prune(folder_.path(), {.keep = 1, .dry_run = true}), ElementsAre(folder_ / "one"));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("one", "two"));
}

TEST_F(Retention, RemovesOnlyCheckpoints) {
  const fs::path bad_manifest = save("bad_manifest");
  flip_bit(bad_manifest / kManifestName, 100);
  fs::remove(save("no_manifest") / kManifestName);
  fs::create_directory(folder_ / "empty");
  fs::create_directory(temporary_name(folder_ / "going_on"));
  write_bytes(folder_ / "log.txt", "x");
  const TestFolder elsewhere;
  commit_checkpoint(elsewhere / "linked", {{"step", 1}});
  fs::create_symlink(elsewhere / "linked", folder_ / "linked");
  const auto before = names_in(folder_.path());
  save("one");
  save("two");
  EXPECT_THAT(prune_to(1), ElementsAre(folder_ / "one"));
  fs::remove_all(folder_ / "two");
  EXPECT_EQ(names_in(folder_.path()), before);
  EXPECT_TRUE(fs::exists(elsewhere / "linked" / kManifestName));
}

TEST_F(Retention, ADamagedOneIsNotAmongThoseKept) {
  save("one");
  fs::remove(save("old_torn") / "state.json");
  const fs::path good = save("good");
  fs::resize_file(save("new_torn") / "state.json", 1);
  EXPECT_THAT(prune_to(1), ElementsAre(folder_ / "one", folder_ / "old_torn"));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("good", "new_torn"));
  EXPECT_THAT(prune_to(2), IsEmpty());
  EXPECT_EQ(find_newest(folder_.path()).path, good);
}

TEST_F(Retention, TheOnlyCompleteOneIsKept) {
  const fs::path good = save("good");
  const fs::path flipped = save("flipped");
  flip_bit(flipped / "state.json", 5);
  std::vector<std::string> reported;
  const PruneOptions options{.keep = 1, .not_counted = [&](const SkippedEntry& skipped) {
                               reported.push_back(skipped.path.filename().string() + skipped.why);
                             }};
  EXPECT_THAT(prune(folder_.path(), options), IsEmpty());
  EXPECT_EQ(find_newest(folder_.path(), Verify::kFull).path, good);
  EXPECT_THAT(
      reported,
      ElementsAre(testing::AllOf(HasSubstr("flipped"), HasSubstr("state.json] is damaged"))));
  save("newest");
  EXPECT_THAT(prune_to(2), IsEmpty());
  EXPECT_THAT(prune_to(1), ElementsAre(good, flipped));
}

TEST_F(Retention, OneThatIsKnownToBeDamagedDoesNotCount) {
  const fs::path oldest = save("oldest");
  const fs::path old = save("old");
  const fs::path flipped = save("flipped");
  flip_bit(flipped / "state.json", 5);
  save("newest");
  PruneOptions options{.keep = 2, .verify = Verify::kSizes, .damaged = {"flipped"}};
  EXPECT_THAT(prune(folder_.path(), options), ElementsAre(oldest));
  options.damaged.clear();
  EXPECT_THAT(prune(folder_.path(), options), ElementsAre(old)) << "sizes alone do not tell";
}

TEST_F(Retention, OneInUseByAnotherProcessIsSkipped) {
  save("one");
  save("two");
  const UniqueFd mark = mark_as_in_use(folder_ / "one");
  EXPECT_THAT(prune_to(1), IsEmpty());
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("one", "two"));
}

TEST_F(Retention, OnlyNumberedIgnoresOtherNames) {
  save("best");
  save("checkpoint_2");
  save("checkpoint_10");
  save("checkpoint_");
  save("checkpoint_3x");
  save("my_checkpoint_4");
  const auto old = prune(folder_.path(), {.keep = 1, .only_numbered = true});
  EXPECT_THAT(old, ElementsAre(folder_ / "checkpoint_2"));
  EXPECT_THAT(
      names_in(folder_.path()),
      ElementsAre("best", "checkpoint_", "checkpoint_10", "checkpoint_3x", "my_checkpoint_4"));
  EXPECT_EQ(prune_to(1).size(), 4U);
}

TEST_F(Retention, OneRemovedByAnotherProcessIsSkipped) {
  save("one");
  save("two");
  save("three");
  const TracedChild child = run_traced(
      [&] { return prune_to(1).size() == 1 ? 0 : 1; },
      [&, first = true](long number) mutable {
        // By the time of the first renaming both are known.
        if (number == SYS_rename && std::exchange(first, false)) {
          fs::remove_all(folder_ / "one");
        }
        return 0;
      });
  if (child.end == TracedChild::End::kCannotTrace) {
    GTEST_SKIP() << "ptrace is not allowed here";
  }
  EXPECT_EQ(child.code, 0);
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("three"));
}

TEST_F(Retention, AlwaysLeavesOne) {
  save("one");
  EXPECT_THAT(
      [&] { prune_to(0); }, ThrowsMessage<ConfigError>(HasSubstr("keep is out of range; got 0")));
  EXPECT_THAT(prune(folder_ / "absent", {.keep = 1}), IsEmpty());
}

TEST_F(Retention, AKillAtAnyCallLeavesCompleteCheckpointsAndRemovableFiles) {
  for (int kill_at = 0;; ++kill_at) {
    for (const char* name : {"one", "two", "three"}) {
      save(name);
    }
    int calls = 0;
    const TracedChild child = run_traced(
        [&] {
          prune_to(1);
          return 0;
        },
        [&](long) { return calls++ == kill_at ? TracedChild::kKill : 0; });
    if (child.end == TracedChild::End::kCannotTrace) {
      GTEST_SKIP() << "ptrace is not allowed here";
    }
    for (const std::string& name : names_in(folder_.path())) {
      if (!is_temporary_name(name)) {
        EXPECT_NO_THROW(StoredCheckpoint(folder_ / name, Verify::kFull)) << kill_at;
      }
    }
    EXPECT_EQ(find_newest(folder_.path()).path, folder_ / "three") << kill_at;
    remove_stale(folder_.path());
    const auto left = names_in(folder_.path());
    EXPECT_TRUE(std::none_of(left.begin(), left.end(), is_temporary_name)) << kill_at;
    if (child.end == TracedChild::End::kExited) {
      EXPECT_THAT(left, ElementsAre("three"));
      EXPECT_GT(kill_at, 10);
      break;
    }
  }
}

}  // namespace
}  // namespace lockstep::storage
