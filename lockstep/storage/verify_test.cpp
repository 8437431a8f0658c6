// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/verify.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/test_files.h"
#include "lockstep/storage/test_traced_child.h"

namespace lockstep::storage {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
namespace fs = std::filesystem;
using Json = nlohmann::json;

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

TEST_F(DamageTest, ListsEveryDamagedFileAndTensor) {
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

/// A saved state of one process, whose model is in two parts.
class Structure : public testing::Test {
 protected:
  Structure() { save("checkpoint_1", {{"a", {{4}, 0}}}, {{"a", {{4}, 2}}}); }

  static TestFile part(const Slices& slices, const std::string& key = kSlicesKey) {
    return {{output_tensor("a", Dtype::kU8, {2}, "xy")}, {{key, render_slices("a test", slices)}}};
  }
  static TestFile one_tensor() { return {{output_tensor("b", Dtype::kU8, {1}, "z")}}; }
  void save(const std::string& name, const Slices& first, const Slices& second) const {
    std::map<std::string, TestFile> files = {
        {"model-00001-of-00002.safetensors", part(first)},
        {"model-00002-of-00002.safetensors", part(second)}};
    for (const char* file :
         {"optimizer",
          "optimizer.json",
          "loaders_0.json",
          "accumulation_0.json",
          "random_states_0"}) {
      const bool is_json = std::string_view(file).ends_with(".json");
      files[is_json ? file : std::string(file) + ".safetensors"] = one_tensor();
    }
    commit_checkpoint(folder_ / name, meta_, files);
  }
  std::vector<Damage> damage(const std::string& name = "checkpoint_1") const {
    return find_damage(StoredCheckpoint(folder_ / name, Verify::kManifest));
  }
  /// Expects exactly this fault from a verification, and an error only if everything is read.
  void expect_fault(
      const std::string& file, const std::string& why, const std::string& name = "checkpoint_1") {
    const std::vector<Damage> found = damage(name);
    ASSERT_EQ(found.size(), 1U) << (found.empty() ? "" : found[1].why);
    EXPECT_EQ(found[0].file, file);
    EXPECT_THAT(found[0].why, HasSubstr(why));
    EXPECT_THAT(
        [&] { const StoredCheckpoint opened(folder_ / name, Verify::kFull); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr(file), HasSubstr(why))));
  }
  void unlist(const std::string& file) const {
    edit_manifest(folder_ / "checkpoint_1", [&](Json& manifest) {
      Json kept = Json::array();
      for (const Json& record : manifest["files"]) {
        if (record["name"] != file) {
          kept.push_back(record);
        }
      }
      manifest["files"] = kept;
    });
  }

  const Json meta_ = {
      {"processes", 1},
      {"models", 1},
      {"models_taken_over", Json::array()},
      {"loaders", 0},
      {"optimizer_steps", {3}},
      {"step", 3},
      {"schedulers", Json::array()},
      {"custom_objects", Json::array()}};
  TestFolder folder_;
};

TEST_F(Structure, OfAGoodCheckpointHasNoFault) {
  EXPECT_THAT(damage(), IsEmpty());
  const StoredCheckpoint opened(folder_ / "checkpoint_1", Verify::kFull);
  EXPECT_THAT(find_structural_faults(opened), IsEmpty());
}

TEST_F(Structure, APartThatTheManifestDoesNotListIsAFault) {
  unlist("model-00002-of-00002.safetensors");
  expect_fault("model-00002-of-00002.safetensors", "is missing; manifest.json lists 1 of 2 parts");
}

TEST_F(Structure, AFileThatAStateNeedsAndTheManifestDoesNotListIsAFault) {
  for (const char* file :
       {"optimizer.safetensors",
        "optimizer.json",
        "loaders_0.json",
        "accumulation_0.json",
        "random_states_0.safetensors"}) {
    SCOPED_TRACE(file);
    save("checkpoint_1", {{"a", {{4}, 0}}}, {{"a", {{4}, 2}}});
    unlist(file);
    expect_fault(file, "is not listed in manifest.json, although ");
  }
  save("checkpoint_1", {{"a", {{4}, 0}}}, {{"a", {{4}, 2}}});
  edit_manifest(
      folder_ / "checkpoint_1", [](Json& manifest) { manifest["meta"]["models"] = 60000; });
  expect_fault("model_1.safetensors", "although meta.models in the manifest requires it");
}

TEST_F(Structure, SlicesThatAreNotTheirTensorAreAFault) {
  save("beyond", {{"a", {{3}, 0}}}, {{"a", {{3}, 2}}});
  expect_fault(
      "model-00002-of-00002.safetensors",
      "\"a\"] has a slice beyond the end of the tensor; got elements 2 to 4 of 3",
      "beyond");
  EXPECT_EQ(damage("beyond").at(0).tensor, "a");
  save("hole", {{"a", {{5}, 0}}}, {{"a", {{5}, 3}}});
  expect_fault("model-00002-of-00002.safetensors", "slices that leave a gap", "hole");
  save("overlap", {{"a", {{3}, 0}}}, {{"a", {{3}, 1}}});
  expect_fault("model-00002-of-00002.safetensors", "slices that overlap", "overlap");
}

TEST_F(Structure, ASliceOfAHostsOwnPartBeyondItsTensorIsAFault) {
  const std::string file = "model_part_of_rank_0.safetensors";
  commit_checkpoint(folder_ / "own", Json::object(), {{file, part({{"a", {{4}, 2}}}, kPartKey)}});
  EXPECT_THAT(damage("own"), IsEmpty());
  commit_checkpoint(folder_ / "own", Json::object(), {{file, part({{"a", {{4}, 3}}}, kPartKey)}});
  expect_fault(file, "beyond the end of the tensor; got elements 3 to 5 of 4", "own");
}

TEST_F(Structure, IsNotCheckedInADamagedFile) {
  const fs::path file = folder_ / "checkpoint_1" / "model-00001-of-00002.safetensors";
  flip_bit(file, 30);
  const std::vector<Damage> found = damage();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].why, HasSubstr("model-00001-of-00002.safetensors"));
}

TEST_F(Structure, ValuesOfMetaThatMakeNoSenseAreRefusedWithFileAndKey) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {Json("x"), "got \"\\\"x\\\"\" for meta.step, expected a whole number from 0 on"},
      {Json(-5), "got \"-5\" for meta.step, expected a whole number from 0 on"},
      {Json(1.5), "got \"1.5\" for meta.step"},
      {Json(nullptr), "got \"null\" for meta.step"}};
  for (const auto& [value, why] : cases) {
    edit_manifest(folder_ / "checkpoint_1", [&, &step = value](Json& manifest) {
      manifest["meta"]["step"] = step;
    });
    expect_fault("manifest.json", why);
    EXPECT_THAT(
        [&] { const StoredCheckpoint opened(folder_ / "checkpoint_1", Verify::kSizes); },
        ThrowsMessage<CheckpointError>(HasSubstr(why)));
    EXPECT_THAT(list_checkpoints(folder_.path()).at(0).why, HasSubstr(why));
  }
  const Json of_others = {{"step", "anything"}};
  commit_checkpoint(folder_ / "others", of_others);
  EXPECT_THAT(damage("others"), IsEmpty()) << "meta of a program that uses a Writer is its own";
}

TEST_F(Structure, ACheckpointWithAFaultIsSkippedForThePreviousOne) {
  save("checkpoint_2", {{"a", {{3}, 0}}}, {{"a", {{3}, 2}}});
  const NewestCheckpoint newest = find_newest(folder_.path(), Verify::kFull);
  EXPECT_EQ(newest.path, folder_ / "checkpoint_1");
  ASSERT_EQ(newest.skipped.size(), 1U);
  EXPECT_THAT(newest.skipped[0].why, HasSubstr("beyond the end of the tensor"));
  EXPECT_TRUE(newest.skipped[0].was_checkpoint);
}

}  // namespace
}  // namespace lockstep::storage
