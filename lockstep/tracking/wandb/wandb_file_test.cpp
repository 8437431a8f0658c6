// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/wandb/wandb_file.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tracking/test_folder.h"
#include "lockstep/tracking/wandb/wandb_tracker.h"

namespace lockstep::tracking {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ThrowsMessage;

constexpr size_t kBlock = 32768;
constexpr size_t kHeader = 7;

/// Returns type and size of each part.
std::vector<std::pair<int, size_t>> parts_of(const std::string& log) {
  std::vector<std::pair<int, size_t>> parts;
  for (size_t at = 0; at + kHeader <= log.size();) {
    const size_t size =
        static_cast<unsigned char>(log[at + 4]) + 256U * static_cast<unsigned char>(log[at + 5]);
    parts.emplace_back(log[at + 6], size);
    at += kHeader + size;
  }
  return parts;
}

// tracker_real_test.cpp reads files of Lockstep by wandb's own reader.
TEST(WandbLog, ARecordThatFitsIsOnePart) {
  EXPECT_THAT(parts_of(wandb_log_blocks("abc", 100)), ElementsAre(Pair(1, 3)));
  EXPECT_THAT(
      parts_of(wandb_log_blocks(std::string(kBlock - kHeader, 'a'), 0)),
      ElementsAre(Pair(1, kBlock - kHeader)));
}

TEST(WandbLog, ALongRecordIsSplitAtBlocks) {
  const std::string log = wandb_log_blocks(std::string(2 * kBlock, 'a'), kBlock - 10);
  EXPECT_THAT(
      parts_of(log),
      ElementsAre(Pair(2, 3), Pair(3, kBlock - kHeader), Pair(3, kBlock - kHeader), Pair(4, 11)));
}

TEST(WandbLog, ABlocksEndIsPaddedWithZeros) {
  const std::string log = wandb_log_blocks("abc", kBlock - 5);
  EXPECT_EQ(log.substr(0, 5), std::string(5, '\0'));
  EXPECT_THAT(parts_of(log.substr(5)), ElementsAre(Pair(1, 3)));
}

// tests/tracking/make_fixtures.py made the bytes with wandb's own classes.
TEST(WandbFile, WritesTheBytesOfWandb) {
  const TestFolder folder;
  WandbFile file;
  ASSERT_TRUE(file.create(folder / "run.wandb"));
  file.append(
      2,
      "\x0a\x0c\x0a\x04loss\x82\x01\x03"
      "0.5"
      "\x12\x02\x08\x07");
  file.append(18, "\x08\x01\x10\x05");
  std::string hex;
  for (const char c : contents(file.path())) {
    hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  EXPECT_EQ(
      hex,
      "3a572642e1be00fbe770e8160001080112120a0c0a046c6f7373820103302e35120208075b10e04d"
      "090001080292010408011005");
  EXPECT_FALSE(WandbFile().create(file.path()));
}

TEST(Wandb, IsInAFolderThatSyncTakes) {
  const TestFolder folder;
  const WandbTracker tracker(folder.path(), {.project = "demo", .id = "abc"});
  EXPECT_EQ(tracker.path(), tracker.folder() / "run-abc.wandb");
  EXPECT_THAT(
      tracker.folder().filename().string(),
      testing::MatchesRegex("offline-run-[0-9]{8}_[0-9]{6}-abc"));
  EXPECT_EQ(tracker.folder().parent_path(), folder / "wandb");
  EXPECT_EQ(contents(tracker.path()).substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
  EXPECT_THAT(contents(tracker.path()), HasSubstr("demo"));
}

TEST(Wandb, RefusesAnIdThatLeadsOut) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { WandbTracker(folder.path(), {.id = "../a"}); },
      ThrowsMessage<ConfigError>(HasSubstr("invalid value '../a' for id")));
}

int fill_wandb_file(const std::filesystem::path& folder) {
  WandbTracker tracker(folder, {.id = "abc"});
  return log_until_full(tracker, {"File too large", tracker.path().string()});
}

TEST(Wandb, AFullDiskIsAnErrorOfTheCallThatDidNotFit) {
  const TestFolder folder;
  EXPECT_EQ(run_with_file_limit(1000, &fill_wandb_file, folder.path()), 0);
}

}  // namespace
}  // namespace lockstep::tracking
