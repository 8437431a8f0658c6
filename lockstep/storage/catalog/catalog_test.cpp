// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/catalog/catalog.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_checkpoints.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
namespace fs = std::filesystem;
using Json = nlohmann::json;

class Catalog : public CheckpointsTest {};

TEST_F(Catalog, FindsTheLastCommittedOneRegardlessOfClockAndNames) {
  const fs::path first = save("step_9");
  const fs::path second = save("step_10");
  const fs::path third = save("a_third");
  fs::last_write_time(third, fs::file_time_type::clock::now() - std::chrono::hours(1000));
  EXPECT_EQ(find_newest(folder_.path()).path, third);
  EXPECT_THAT(find_newest(folder_.path()).skipped, IsEmpty());
  fs::remove_all(third);
  EXPECT_EQ(find_newest(folder_.path()).path, second);
  EXPECT_EQ(next_sequence(folder_.path()), 3);
  save("step_9");
  EXPECT_EQ(find_newest(folder_.path()).path, first);
}

TEST_F(Catalog, SkipsTornOnesAndSaysWhy) {
  const fs::path good = save("good");
  const fs::path truncated = save("truncated");
  const fs::path no_manifest = save("unfinished");
  fs::resize_file(truncated / "state.json", 1);
  fs::remove(no_manifest / "manifest.json");
  fs::create_directory(folder_ / "empty");
  const fs::path temporary = temporary_name(folder_ / "going_on");
  fs::create_directory(temporary);
  write_bytes(folder_ / "events.jsonl", "{}");
  const NewestCheckpoint newest = find_newest(folder_.path());
  EXPECT_EQ(newest.path, good);
  ASSERT_EQ(newest.skipped.size(), 4U);
  EXPECT_EQ(newest.skipped[0].path, folder_ / "empty");
  EXPECT_THAT(newest.skipped[0].why, HasSubstr("no manifest.json"));
  EXPECT_EQ(newest.skipped[1].path, temporary);
  EXPECT_THAT(newest.skipped[1].why, HasSubstr("was interrupted"));
  EXPECT_EQ(newest.skipped[2].path, truncated);
  EXPECT_THAT(newest.skipped[2].why, HasSubstr("got 1 bytes"));
  EXPECT_EQ(newest.skipped[3].path, no_manifest);
}

TEST_F(Catalog, SkipsAFlippedBitIfAskedToReadEverything) {
  const fs::path good = save("good");
  const fs::path flipped = save("flipped");
  flip_bit(flipped / "state.json", 5);
  EXPECT_EQ(find_newest(folder_.path(), Verify::kSizes).path, flipped);
  EXPECT_EQ(find_newest(folder_.path(), Verify::kFull).path, good);
}

void set_version(const fs::path& checkpoint, int version) {
  edit_manifest(checkpoint, [&](Json& manifest) { manifest["version"] = version; });
}

TEST_F(Catalog, RefusesToSkipCheckpointsOfANewerLockstep) {
  const fs::path old = save("checkpoint_1");
  const fs::path newer = save("checkpoint_2");
  set_version(newer, kFormatVersion + 8);
  EXPECT_THAT(
      [&] { find_newest(folder_.path()); },
      ThrowsMessage<CheckpointError>(HasSubstr("got \"9\", expected 1")));
  EXPECT_EQ(list_checkpoints(folder_.path()).size(), 2U);
  EXPECT_EQ(next_sequence(folder_.path()), 4);
  // The same digit, by one flipped bit.
  set_version(newer, kFormatVersion);
  const size_t digit = read_bytes(newer / kManifestName).find("\"version\": 1") + 11;
  flip_bit(newer / kManifestName, digit, 3);
  ASSERT_THAT(read_bytes(newer / kManifestName), HasSubstr("\"version\": 9"));
  EXPECT_EQ(find_newest(folder_.path()).path, old);
}

TEST_F(Catalog, DistinguishesDamagedCheckpointsFromOtherFolders) {
  fs::remove(save("checkpoint_4") / kManifestName);
  flip_bit(save("flipped") / kManifestName, 100);
  fs::remove(save("truncated") / "state.json");
  fs::create_directory(folder_ / "logs");
  fs::create_directory(temporary_name(folder_ / "checkpoint_5"));
  std::vector<std::string> were;
  for (const SkippedEntry& skipped : find_newest(folder_.path()).skipped) {
    if (skipped.was_checkpoint) {
      were.push_back(skipped.path.filename());
    }
  }
  EXPECT_THAT(were, ElementsAre("checkpoint_4", "flipped", "truncated"));
}

TEST_F(Catalog, FollowsASymbolicLinkToACheckpoint) {
  const TestFolder other_disk;
  save("checkpoint_1");
  fs::rename(save("checkpoint_2"), other_disk / "moved");
  fs::create_directory_symlink(other_disk / "moved", folder_ / "checkpoint_2");
  NewestCheckpoint newest = find_newest(folder_.path(), Verify::kFull);
  EXPECT_EQ(newest.path, folder_ / "checkpoint_2");
  EXPECT_THAT(newest.skipped, IsEmpty());
  EXPECT_EQ(list_checkpoints(folder_.path()).back().path, folder_ / "checkpoint_2");
  EXPECT_EQ(next_sequence(folder_.path()), 5) << "one more than that of the one moved";
  flip_bit(other_disk / "moved" / "state.json", 5);
  newest = find_newest(folder_.path(), Verify::kFull);
  EXPECT_EQ(newest.path, folder_ / "checkpoint_1");
  ASSERT_EQ(newest.skipped.size(), 1U);
  EXPECT_TRUE(newest.skipped[0].was_checkpoint);
}

TEST_F(Catalog, ACheckpointIsListedUnderItsOwnNameThoughALinkLeadsToIt) {
  const fs::path own = save("checkpoint_1");
  fs::create_directory_symlink(own, folder_ / "a_link");
  fs::create_directory_symlink(own, folder_ / "last");
  EXPECT_EQ(find_newest(folder_.path()).path, own);
  EXPECT_EQ(list_checkpoints(folder_.path()).back().path, own);
}

TEST_F(Catalog, NamesPathsWithACheckpointsNameThatAreNotCheckpoints) {
  fs::create_directory_symlink("/no/such/disk", folder_ / "checkpoint_4");
  fs::create_symlink(folder_ / "checkpoint_5", folder_ / "checkpoint_5");
  write_bytes(folder_ / "checkpoint_6", "a file");
  fs::create_symlink(folder_ / "checkpoint_6", folder_ / "checkpoint_7");
  write_bytes(folder_ / "events.jsonl", "{}");
  fs::create_symlink("/no/such/disk", folder_ / "logs");
  const std::vector<SkippedEntry> skipped = find_newest(folder_.path()).skipped;
  const std::vector<CheckpointEntry> listed = list_checkpoints(folder_.path());
  ASSERT_EQ(skipped.size(), 4U);
  ASSERT_EQ(listed.size(), 4U);
  const std::vector<std::string> reasons = {
      "is a symbolic link to /no/such/disk, which does not exist",
      "which cannot be reached: Too many levels of symbolic links",
      "is not a folder; a checkpoint is a folder",
      "checkpoint_6, which is not a folder"};
  for (size_t i = 0; i < reasons.size(); ++i) {
    EXPECT_THAT(skipped[i].why, HasSubstr(reasons[i]));
    EXPECT_EQ(listed[i].why, skipped[i].why);
    EXPECT_TRUE(skipped[i].was_checkpoint) << skipped[i].path;
  }
  EXPECT_EQ(next_checkpoint_number(folder_.path()), 8);
  EXPECT_EQ(next_sequence(folder_.path()), 9);
  EXPECT_THAT(
      [&] { read_manifest(folder_ / "checkpoint_4"); },
      ThrowsMessage<CheckpointError>(HasSubstr("mount that disk, restore the folder")));
}

TEST_F(Catalog, CountsTheNumberOfOneWhoseManifestIsDamaged) {
  save("checkpoint_1");
  const fs::path damaged = save("checkpoint_7");
  EXPECT_EQ(next_sequence(folder_.path()), 10) << "it was given two more than its number";
  flip_bit(damaged / kManifestName, 100);
  EXPECT_EQ(next_sequence(folder_.path()), 9) << "checkpoint_0 has the sequence number 1";
  fs::create_directory(folder_ / "checkpoint_99999999999999999999");
  fs::create_directory(folder_ / "checkpoint_");
  fs::create_directory(folder_ / "checkpoint_12x");
  EXPECT_EQ(next_sequence(folder_.path()), 9);
}

TEST_F(Catalog, NumbersCheckpointsFromZeroWhateverElseTheFolderHolds) {
  EXPECT_EQ(next_checkpoint_number(folder_ / "absent"), 0);
  save("best");
  fs::create_directory(temporary_name(folder_ / "checkpoint_5"));
  fs::create_directory(folder_ / "checkpoint_12x");
  EXPECT_EQ(next_checkpoint_number(folder_.path()), 0);
  save("checkpoint_0");
  EXPECT_EQ(next_checkpoint_number(folder_.path()), 1);
  fs::remove(save("checkpoint_7") / kManifestName);
  EXPECT_EQ(next_checkpoint_number(folder_.path()), 8);
}

TEST_F(Catalog, AnAbsentOrEmptyFolderHoldsNone) {
  EXPECT_EQ(find_newest(folder_.path()).path, std::nullopt);
  EXPECT_EQ(find_newest(folder_ / "absent").path, std::nullopt);
  EXPECT_EQ(next_sequence(folder_ / "absent"), 1);
}

TEST_F(Catalog, ListsCheckpointsInTheOrderOfTheirCommitsAndThenTheRest) {
  save("step_9");
  const fs::path truncated = save("step_1");
  save("step_10");
  fs::resize_file(truncated / "state.json", 1);
  fs::create_directory(folder_ / "empty");
  const fs::path temporary = temporary_name(folder_ / "a_new_one");
  fs::create_directory(temporary);
  const std::vector<CheckpointEntry> listed = list_checkpoints(folder_.path());
  ASSERT_EQ(listed.size(), 5U);
  EXPECT_EQ(listed[0].path, folder_ / "step_9");
  EXPECT_EQ(listed[0].why, "");
  EXPECT_EQ(listed[1].path, truncated);
  EXPECT_EQ(listed[1].manifest->sequence, 2);
  EXPECT_THAT(listed[1].why, HasSubstr("got 1 bytes"));
  EXPECT_EQ(listed[2].path, folder_ / "step_10");
  EXPECT_EQ(listed[3].path, temporary);
  EXPECT_THAT(listed[3].why, HasSubstr("was interrupted"));
  EXPECT_EQ(listed[4].path, folder_ / "empty");
  EXPECT_FALSE(listed[4].manifest);
  EXPECT_THAT(list_checkpoints(folder_ / "absent"), IsEmpty());
}

TEST_F(Catalog, LatestNamesTheLastWrittenCheckpoint) {
  EXPECT_EQ(read_latest(folder_.path()), std::nullopt);
  write_latest(folder_.path(), "step_1");
  write_latest(folder_.path(), "step_2");
  EXPECT_EQ(read_latest(folder_.path()), "step_2");
  EXPECT_EQ(read_bytes(folder_ / "latest"), "step_2\n");
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("latest"));
}

TEST_F(Catalog, LatestNamesNothingElsewhere) {
  EXPECT_THROW(write_latest(folder_.path(), "../step_1"), CheckpointError);
  write_bytes(folder_ / "latest", "../../etc\n");
  EXPECT_THAT(
      [&] { read_latest(folder_.path()); }, ThrowsMessage<CheckpointError>(HasSubstr("../../etc")));
}

}  // namespace
}  // namespace lockstep::storage
