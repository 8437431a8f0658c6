// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/safetensors_map.h"

#include <string>
#include <string_view>
#include <sys/mman.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/stored_checkpoint.h"
#include "lockstep/storage/tensor_set.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::storage {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

constexpr size_t kBytes = size_t{9} << 20;  // Fetched in more than two chunks.

/// A checkpoint of a tensor `short` before one that is `long`.
class ReadErrors : public testing::Test {
 protected:
  void SetUp() override {
    if (madvise(nullptr, 0, MADV_POPULATE_READ) != 0) {
      GTEST_SKIP() << "Linux before 5.14 cannot fetch";
    }
    commit_checkpoint(
        folder_ / "step_1",
        {{"step", 1}},
        {{"model.safetensors",
          {{output_tensor("long", Dtype::kU8, {kBytes}, long_),
            output_tensor("short", Dtype::kF32, {2}, "12345678")}}}});
  }
  /// As if the disk could not read all of the long one: touching it would be SIGBUS.
  void truncate() const { fs::resize_file(file_, kBytes / 2); }
  static testing::Matcher<const CheckpointError&> says_all() {
    return testing::Property(
        &CheckpointError::what,
        AllOf(
            HasSubstr("model.safetensors: \"long\"] cannot be read: the file was truncated"),
            HasSubstr("try an earlier checkpoint")));
  }

  TestFolder folder_;
  std::string long_ = std::string(kBytes, 'x');
  fs::path file_ = folder_ / "step_1" / "model.safetensors";
};

TEST_F(ReadErrors, AreNamedWhenATensorIsFetched) {
  const SafetensorsMap map(file_);
  size_t visited = 0;
  const auto visit = [&](std::string_view chunk) {
    EXPECT_EQ(chunk, std::string_view(long_).substr(visited, chunk.size()));
    visited += chunk.size();
  };
  map.fetch(map.entry("long"), visit);
  EXPECT_EQ(visited, kBytes);
  truncate();
  map.fetch(map.entry("short"));
  EXPECT_THAT([&] { map.fetch(map.entry("long")); }, testing::Throws<CheckpointError>(says_all()));
  visited = 0;
  EXPECT_THAT(
      [&] { map.fetch(map.entry("long"), visit); }, testing::Throws<CheckpointError>(says_all()));
  EXPECT_LT(visited, kBytes);
}

TEST_F(ReadErrors, AreNamedWhenTheContentIsProven) {
  const StoredCheckpoint stored(folder_ / "step_1");
  const TensorSet set(stored, "model");
  const SafetensorsMap map = stored.open_tensors("model.safetensors");
  truncate();
  EXPECT_EQ(set.bytes(set.tensor("short").slices.front()), "12345678");
  EXPECT_THAT(
      [&] { set.bytes(set.tensor("long").slices.front()); },
      testing::Throws<CheckpointError>(says_all()));
  EXPECT_THAT(
      [&] { verify_tensor(map, map.entry("long"), stored.record("model.safetensors")); },
      testing::Throws<CheckpointError>(says_all()));
}

TEST_F(ReadErrors, OfAMapAreNamedWithItsPathAndPlace) {
  const FileMap map = map_private(file_);
  fetch_pages(file_, map, 0, map.size());
  fetch_pages(file_, map, 5, 0);
  truncate();
  fetch_pages(file_, map, 1, 100);
  EXPECT_THAT(
      [&] { fetch_pages(file_, map, 8 << 20, 100); },
      ThrowsMessage<CheckpointError>(
          AllOf(HasSubstr(file_.string()), HasSubstr("at bytes 8388608 to 8388708"))));
}

}  // namespace
}  // namespace lockstep::storage
