// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/damage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/storage/test_files.h"
#include "lockstep/storage/traced_child.h"

namespace lockstep::storage {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

class DamageTest : public testing::Test {
 protected:
  DamageTest() {
    std::vector<OutputTensor> tensors;
    for (const char* name : {"a", "b", "c"}) {
      tensors.push_back(output_tensor(name, Dtype::kU8, {100}, std::string(100, name[0])));
    }
    commit_checkpoint(
        path_,
        {{"step", 1}},
        {{"model.safetensors", {tensors}},
         {"optimizer.safetensors", {tensors}},
         {"random.safetensors", {tensors}}});
  }
  std::vector<Damage> found() const {
    return find_damage(StoredCheckpoint(path_, Verify::kManifest));
  }
  size_t place_of(const char* file, const char* tensor) const {
    const SafetensorsMap map(path_ / file);
    return map.header_bytes().size() + map.entry(tensor).begin;
  }

  TestFolder folder_;
  fs::path path_ = folder_ / "step_1";
};

TEST_F(DamageTest, IsNotFoundInACompleteCheckpoint) {
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(DamageTest, IsAllThatIsWrong) {
  flip_bit(path_ / "model.safetensors", place_of("model.safetensors", "a") + 5);
  flip_bit(path_ / "model.safetensors", place_of("model.safetensors", "c") + 99);
  flip_bit(path_ / "random.safetensors", 20);
  fs::remove(path_ / "optimizer.safetensors");
  fs::resize_file(path_ / "state.json", 1);
  const std::vector<Damage> damage = found();
  ASSERT_EQ(damage.size(), 5U);
  EXPECT_EQ(damage[0].file, "model.safetensors");
  EXPECT_EQ(damage[0].tensor, "a");
  EXPECT_THAT(damage[0].why, HasSubstr("\"a\"] is damaged; its content has crc32c"));
  EXPECT_EQ(damage[1].tensor, "c");
  EXPECT_EQ(damage[2].file, "optimizer.safetensors");
  EXPECT_THAT(damage[2].why, HasSubstr("cannot be opened; No such file"));
  EXPECT_EQ(damage[3].file, "random.safetensors");
  EXPECT_EQ(damage[3].tensor, "");
  EXPECT_EQ(damage[4].file, "state.json");
  EXPECT_THAT(damage[4].why, HasSubstr("got 1 bytes, expected"));
}

TEST_F(DamageTest, ReportsProgressForAnyAmountOfDamage) {
  const auto advanced_by = [&] {
    uint64_t bytes = 0;
    find_damage(StoredCheckpoint(path_, Verify::kManifest), [&](uint64_t more) { bytes += more; });
    return bytes;
  };
  const uint64_t undamaged = advanced_by();
  uint64_t expected = 0;
  for (const FileRecord& record : read_manifest(path_).files) {
    expected += record.summary.bytes;
  }
  EXPECT_EQ(undamaged, expected);
  flip_bit(path_ / "model.safetensors", place_of("model.safetensors", "a"));
  fs::remove(path_ / "optimizer.safetensors");
  EXPECT_EQ(advanced_by(), undamaged);
}

TEST_F(DamageTest, IsAFileThatIsTruncatedDuringARead) {
  const std::string large(3'000'000, 'x');
  for (const char* name : {"large_tensor.safetensors", "large_text"}) {
    const fs::path path = folder_ / name;
    std::map<std::string, TestFile> files;
    if (path.extension() == ".safetensors") {
      files["large"] = {{output_tensor("w", Dtype::kU8, {3'000'000}, large)}};
    }
    commit_checkpoint(path, {{"text", large}}, files);
    const std::string shrinks = files.empty() ? "state.json" : "large";
    const auto damage = find_damage(
        StoredCheckpoint(path, Verify::kSizes),
        [&](uint64_t /*bytes*/) { fs::resize_file(path / shrinks, 1'000'000); });
    ASSERT_GE(damage.size(), 1U) << name;
    EXPECT_EQ(damage[0].file, shrinks);
    EXPECT_THAT(damage[0].why, HasSubstr("was truncated while it was read"));
  }
}

TEST_F(DamageTest, IsAFileThatTheDiskCannotRead) {
  const TracedChild child = run_traced(
      [&] {
        const std::vector<Damage> damage = found();
        return damage.size() == 1 && damage[0].file == "optimizer.safetensors" &&
                       damage[0].tensor == "b" &&
                       damage[0].why.find("cannot be read; Input/output error") != std::string::npos
                   ? 0
                   : 1;
      },
      [reads = 0](long number) mutable {
        // The manifest; of each file its length, its header, and three tensors.
        return number == SYS_pread64 && reads++ == 1 + 5 + 3 ? EIO : 0;
      });
  if (child.end == TracedChild::End::kCannotTrace) {
    GTEST_SKIP() << "ptrace is not allowed here";
  }
  EXPECT_EQ(child.code, 0);
}

}  // namespace
}  // namespace lockstep::storage
