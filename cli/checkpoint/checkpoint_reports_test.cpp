// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/checkpoint_reports.h"

#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/checkpoint/merge_weights.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/test_files.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::cli {
namespace {

using storage::Dtype;
using storage::output_tensor;
using storage::OutputTensor;
using storage::raw_bytes;
using storage::TestFile;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;
using Json = nlohmann::json;

OutputTensor floats(
    const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return output_tensor(name, Dtype::kF32, shape, raw_bytes(values));
}

class CheckpointReports : public testing::Test {
 protected:
  using Files = std::map<std::string, TestFile>;

  fs::path save(const std::string& name, const Files& files, const Json& meta = {{"step", 7}}) {
    storage::commit_checkpoint(folder_ / name, meta, files);
    return folder_ / name;
  }
  /// A model in one file, and an optimizer in two, with one tensor in both.
  static Files some_files() {
    const auto slice = [](const std::vector<float>& values, int64_t begin) {
      return TestFile{
          {floats("w.exp_avg", {static_cast<int64_t>(values.size())}, values)},
          {{storage::kSlicesKey,
            storage::render_slices("test", {{"w.exp_avg", {{2, 2}, begin}}})}}};
    };
    return {
        {"model.safetensors", {{floats("w", {2, 2}, {1, 2, 3, 4}), floats("b", {}, {5})}}},
        {"optimizer-00001-of-00002.safetensors", slice({1, 2, 3}, 0)},
        {"optimizer-00002-of-00002.safetensors", slice({4}, 3)}};
  }

  TestFolder folder_;
};

TEST_F(CheckpointReports, ListNamesAllAndMarksTheNewest) {
  save("step_9", some_files());
  save("step_10", {}, {{"epoch", 1}});
  const fs::path torn = save("step_8", some_files());
  fs::resize_file(torn / "model.safetensors", 3);
  fs::create_directory(folder_ / "other");
  const Report report = list_report(folder_.path());
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_EQ(report.json["newest"], "step_10");
  const Json& listed = report.json["checkpoints"];
  ASSERT_EQ(listed.size(), 4U);
  EXPECT_EQ(listed[0]["name"], "step_9");
  EXPECT_EQ(listed[0]["step"], 7);
  EXPECT_EQ(listed[0]["files"], 4);
  EXPECT_EQ(listed[0]["valid"], true);
  EXPECT_EQ(listed[0]["newest"], false);
  EXPECT_EQ(listed[1]["step"], nullptr);
  EXPECT_EQ(listed[1]["newest"], true);
  EXPECT_EQ(listed[2]["sequence"], 3);
  EXPECT_EQ(listed[2]["valid"], false);
  EXPECT_THAT(listed[2]["why"].get<std::string>(), HasSubstr("got 3 bytes"));
  EXPECT_EQ(listed[3]["sequence"], nullptr);
  EXPECT_THAT(
      report.text,
      AllOf(
          HasSubstr("    step_9          1     7      1      4"),
          HasSubstr("  * step_10         2     -      1      1"),
          HasSubstr("not valid: [model.safetensors] has the wrong size"),
          HasSubstr("    other           -     -      -      -      -  not valid: is no")));
}

TEST_F(CheckpointReports, NameLinksAndPathsThatAreNotCheckpoints) {
  const TestFolder other_disk;
  fs::rename(save("checkpoint_1", some_files()), other_disk / "moved");
  fs::create_directory_symlink(other_disk / "moved", folder_ / "checkpoint_1");
  fs::create_directory_symlink("/no/such/disk", folder_ / "checkpoint_2");
  storage::write_bytes(folder_ / "checkpoint_3", "a file");
  const Report listed = list_report(folder_.path());
  EXPECT_EQ(listed.json["newest"], "checkpoint_1");
  EXPECT_THAT(
      listed.text,
      AllOf(
          HasSubstr("valid; a symbolic link to " + (other_disk / "moved").string()),
          HasSubstr("not valid: is a symbolic link to /no/such/disk, which does not exist"),
          HasSubstr("not valid: is not a folder; a checkpoint is a folder")));
  const Report verified =
      verify_report({folder_ / "checkpoint_1", folder_ / "checkpoint_2", folder_ / "checkpoint_3"});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(
      verified.text,
      AllOf(
          HasSubstr("checkpoint_1: complete"),
          HasSubstr("checkpoint_2: damaged\n  is a symbolic link to /no/such/disk"),
          HasSubstr("checkpoint_3: damaged\n  is not a folder")));
  EXPECT_THAT(
      [&] { show_report(folder_ / "checkpoint_2"); },
      ThrowsMessage<ConfigError>(HasSubstr("is a symbolic link to /no/such/disk")));
}

TEST_F(CheckpointReports, ListOfAnEmptyFolderSaysSo) {
  EXPECT_THAT(list_report(folder_.path()).text, HasSubstr(": no checkpoints\n"));
  EXPECT_EQ(list_report(folder_.path()).json["newest"], nullptr);
  EXPECT_THAT(
      [&] { list_report(folder_ / "absent"); },
      ThrowsMessage<ConfigError>(HasSubstr("is not a folder")));
  const fs::path one = save("step_1", {});
  EXPECT_THAT(
      [&] { list_report(one); },
      ThrowsMessage<ConfigError>(HasSubstr("try lockstep checkpoint show " + one.string())));
}

TEST_F(CheckpointReports, ShowPutsSlicesTogether) {
  const Report report = show_report(save("step_1", some_files()));
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_EQ(report.json["meta"], Json({{"step", 7}}));
  EXPECT_EQ(report.json["files"].size(), 4U);
  ASSERT_EQ(report.json["sets"].size(), 2U);
  const Json& model = report.json["sets"][0];
  EXPECT_EQ(model["stem"], "model");
  EXPECT_EQ(model["elements"], 5);
  EXPECT_EQ(model["bytes"], 20);
  const Json& optimizer = report.json["sets"][1];
  EXPECT_EQ(optimizer["tensors"][0]["shape"], Json({2, 2}));
  EXPECT_EQ(optimizer["tensors"][0]["files"].size(), 2U);
  EXPECT_THAT(
      report.text,
      AllOf(
          HasSubstr("model: 2 tensors, 5 values, 20 B, in 1 file\n"),
          HasSubstr("optimizer: 1 tensor, 4 elements, 16 B, in 2 files\n"),
          HasSubstr("  w.exp_avg  F32    [2, 2]         4  16 B       2\n")));
}

TEST_F(CheckpointReports, ShowContinuesAfterAnUnreadableSet) {
  const fs::path path = save("step_1", some_files());
  storage::flip_bit(path / "model.safetensors", 9);
  const Report report = show_report(path);
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_THAT(report.json["sets"][0]["error"].get<std::string>(), HasSubstr("model.safetensors"));
  EXPECT_EQ(report.json["sets"][1]["stem"], "optimizer");
  EXPECT_THAT(report.text, HasSubstr("\nmodel: cannot be read; [model.safetensors"));
}

TEST_F(CheckpointReports, TheParentOfCheckpointsIsAnsweredWithTheNewest) {
  save("step_1", some_files());
  const fs::path newest = save("step_0", some_files());
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { show_report(folder_.path()); },
           [&] { verify_report({folder_.path()}); },
           [&] { diff_report(folder_.path(), newest); },
           [&] { merge_weights(folder_.path(), folder_ / "out", {}); }}) {
    EXPECT_THAT(
        call, ThrowsMessage<ConfigError>(HasSubstr("try the newest one, " + newest.string())));
  }
}

TEST_F(CheckpointReports, VerifyNamesEveryDamagedFileAndTensor) {
  const fs::path good = save("good", some_files());
  const fs::path bad = save("bad", some_files());
  const fs::path torn = save("torn", some_files());
  storage::flip_bit(bad / "model.safetensors", fs::file_size(bad / "model.safetensors") - 1);
  fs::remove(bad / "state.json");
  fs::remove(torn / "manifest.json");
  EXPECT_EQ(verify_report({good}).exit_code, 0);
  EXPECT_THAT(verify_report({good}).text, HasSubstr("good: complete; 4 files, "));
  const Report report = verify_report({good, bad, torn});
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ(report.json["valid"], false);
  const Json& checkpoints = report.json["checkpoints"];
  EXPECT_EQ(checkpoints[0]["valid"], true);
  ASSERT_EQ(checkpoints[1]["damage"].size(), 2U);
  EXPECT_EQ(checkpoints[1]["damage"][0]["file"], "model.safetensors");
  EXPECT_EQ(checkpoints[1]["damage"][0]["tensor"], "w");
  EXPECT_EQ(checkpoints[1]["damage"][1]["file"], "state.json");
  EXPECT_EQ(checkpoints[1]["damage"][1]["tensor"], nullptr);
  EXPECT_EQ(checkpoints[2]["damage"][0]["file"], "manifest.json");
  EXPECT_THAT(
      report.text,
      AllOf(
          HasSubstr("bad: damaged\n  [model.safetensors: \"w\"] is damaged"),
          HasSubstr("\n  [state.json] cannot be opened"),
          HasSubstr("torn: damaged\n  is not a checkpoint")));
}

TEST_F(CheckpointReports, DiffOfEqualContentIsEmpty) {
  Files whole = some_files();
  whole.erase("optimizer-00001-of-00002.safetensors");
  whole.erase("optimizer-00002-of-00002.safetensors");
  whole["optimizer.safetensors"] = {{floats("w.exp_avg", {2, 2}, {1, 2, 3, 4})}};
  const Report report = diff_report(save("one", some_files()), save("other", whole));
  EXPECT_EQ(report.exit_code, 0) << report.text;
  EXPECT_EQ(report.json["same"], true);
  EXPECT_EQ(report.json["tensors_same"], 3);
  EXPECT_EQ(report.text, "no difference; 3 tensors are equal\n");
}

TEST_F(CheckpointReports, DiffNamesAddedRemovedAndChangedTensors) {
  const fs::path one = save(
      "one",
      {{"model.safetensors",
        {{floats("content", {3}, {1, 2, 3}),
          floats("dtype", {1}, {1}),
          floats("gone", {1}, {1}),
          floats("same", {1}, {1}),
          floats("shape", {2}, {1, 2})}}},
       {"ema.safetensors", {{floats("e", {1}, {1})}}}});
  const fs::path other = save(
      "other",
      {{"model.safetensors",
        {{floats("content", {3}, {1, 2.5, 3}),
          output_tensor("dtype", Dtype::kI32, {1}, "1234"),
          floats("new", {1}, {1}),
          floats("same", {1}, {1}),
          floats("shape", {1, 2}, {1, 2})}}}},
      {{"step", 8}});
  const Report report = diff_report(one, other);
  EXPECT_EQ(report.exit_code, 1);
  std::vector<std::string> changes;
  for (const Json& each : report.json["tensors"]) {
    changes.push_back(each["change"].get<std::string>() + " " + each["name"].get<std::string>());
  }
  EXPECT_THAT(
      changes,
      ElementsAre(
          "removed e",
          "content content",
          "dtype dtype",
          "removed gone",
          "shape shape",
          "added new"));
  EXPECT_EQ(report.json["tensors"][1]["elements"], 1);
  EXPECT_EQ(report.json["tensors"][1]["largest"], 0.5);
  EXPECT_EQ(report.json["tensors"][4]["to"]["shape"], Json({1, 2}));
  EXPECT_EQ(report.json["files"], Json({{{"name", "state.json"}, {"change", "content"}}}));
  EXPECT_EQ(report.json["meta_changed"], true);
  EXPECT_THAT(
      report.text,
      AllOf(
          HasSubstr("content  model  content     F32 [3], 1 of 3 elements, by at most 0.5\n"),
          HasSubstr("dtype    model  dtype       F32 [1] to I32 [1]\n"),
          HasSubstr("6 tensors differ, 1 equal\n")));
}

TEST_F(CheckpointReports, PruneListsRemovedAndKeptCheckpoints) {
  save("one", {});
  save("two", {});
  save("three", {});
  fs::create_directory(folder_ / "other");
  const Report dry = prune_report(folder_.path(), {.keep = 1, .dry_run = true});
  EXPECT_EQ(dry.json["removed"].size(), 2U);
  EXPECT_EQ(dry.json["removed"][0]["name"], "one");
  EXPECT_EQ(dry.json["kept"], Json({"three"}));
  EXPECT_THAT(dry.text, HasSubstr("2 checkpoints would be removed"));
  EXPECT_TRUE(fs::exists(folder_ / "one"));
  const Report report = prune_report(folder_.path(), {.keep = 1});
  EXPECT_EQ(report.json["removed"], dry.json["removed"]);
  EXPECT_THAT(report.text, HasSubstr("2 checkpoints removed"));
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("other", "three"));
}

TEST_F(CheckpointReports, PruneReadsKeptCheckpointsAndNamesIgnoredOnes) {
  save("one", {});
  const fs::path flipped = save("two", some_files());
  storage::flip_bit(flipped / "state.json", 2);
  const Report none = prune_report(folder_.path(), {.keep = 1});
  EXPECT_EQ(none.json["removed"].size(), 0U);
  EXPECT_EQ(none.json["kept"], Json({"one", "two"}));
  EXPECT_EQ(none.json["damaged"][0]["name"], "two");
  EXPECT_THAT(none.json["damaged"][0]["why"].get<std::string>(), HasSubstr("is damaged"));
  EXPECT_THAT(
      none.text,
      AllOf(
          HasSubstr("two is damaged and does not count: [state.json] is damaged"),
          HasSubstr("0 checkpoints removed")));
  save("three", {});
  EXPECT_EQ(prune_report(folder_.path(), {.keep = 1}).json["removed"].size(), 2U);
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("three"));
}

TEST_F(CheckpointReports, MergedWeightsAreThoseOfTheModelAskedFor) {
  Files files = some_files();
  files["model_1-00001-of-00002.safetensors"] = {
      {floats("v", {3}, {1, 2, 3})},
      {{storage::kSlicesKey, storage::render_slices("test", {{"v", {{2, 2}, 0}}})}}};
  files["model_1-00002-of-00002.safetensors"] = {
      {floats("v", {1}, {4}), floats("u", {1}, {9})},
      {{storage::kSlicesKey, storage::render_slices("test", {{"v", {{2, 2}, 3}}})}}};
  const fs::path path = save("step_1", files);
  const fs::path out = folder_ / "out";
  EXPECT_EQ(merge_weights(path, out, {}).json["elements"], 5);
  EXPECT_THAT(
      [&] { merge_weights(path, out, {}); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("model.safetensors] exists"), HasSubstr("--force"))));
  const Report report =
      merge_weights(path, out, {.model = 1, .max_shard_bytes = 16, .force = true});
  EXPECT_EQ(
      report.json["files"],
      Json(
          {"model-00001-of-00002.safetensors",
           "model-00002-of-00002.safetensors",
           "model.safetensors.index.json"}));
  const auto shards = storage::open_model_files(out);
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[1].bytes(shards[1].entry("v")), raw_bytes<float>({1, 2, 3, 4}));
  EXPECT_THAT(shards[1].entry("v").shape, ElementsAre(2, 2));
  EXPECT_THAT(
      [&] { merge_weights(path, out, {.model = 2, .force = true}); },
      ThrowsMessage<ConfigError>(
          HasSubstr("has no model 2; expected a value of --model from 0 to 1")));
  EXPECT_THAT(
      [&] { merge_weights(path, out / "x.safetensors", {}); },
      ThrowsMessage<ConfigError>(HasSubstr("is not a folder")));
}

TEST_F(CheckpointReports, MergingDamagedWeightsWritesNothing) {
  const fs::path path = save("step_1", some_files());
  storage::flip_bit(path / "model.safetensors", fs::file_size(path / "model.safetensors") - 1);
  EXPECT_THAT(
      [&] { merge_weights(path, folder_ / "out", {}); },
      ThrowsMessage<CheckpointError>(HasSubstr("\"w\"] is damaged")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_THROW(merge_weights(path, folder_ / "a" / "b", {}), CheckpointError);
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  fs::create_directory(folder_ / "mine");
  EXPECT_THROW(merge_weights(path, folder_ / "mine" / "b", {}), CheckpointError);
  EXPECT_THAT(storage::names_in(folder_ / "mine"), ElementsAre());
}

TEST_F(CheckpointReports, MergedWeightsDoNotGoIntoACheckpoint) {
  const fs::path path = save("step_1", some_files());
  const auto before = storage::names_in(path);
  fs::create_directory_symlink(path, folder_ / "link");
  for (const fs::path& out : {path, path / "out", path / "a" / "b", folder_ / "link" / "out"}) {
    EXPECT_THAT(
        [&] { merge_weights(path, out, {}); },
        ThrowsMessage<ConfigError>(HasSubstr("is in the checkpoint")));
  }
  EXPECT_EQ(storage::names_in(path), before);
}

TEST_F(CheckpointReports, LeftoversOfAKilledProcessAreNamedAndPrunedFirst) {
  const std::string host = [] {
    const fs::path own = storage::temporary_name("x");
    return own.native().substr(6, own.native().find("-" + std::to_string(getpid())) - 6);
  }();
  const pid_t dead = [] {
    const pid_t child = fork();
    if (child == 0) {
      _exit(0);
    }
    waitpid(child, nullptr, 0);
    return child;
  }();
  save("one", {});
  const std::string name = "two.tmp-" + host + "-" + std::to_string(dead) + "-0123456789abcdef";
  fs::create_directory(folder_ / name);
  const Report listed = list_report(folder_.path());
  EXPECT_THAT(listed.text, HasSubstr("a killed save or prune left it"));
  EXPECT_EQ(listed.json["checkpoints"][0]["leftover"], false);
  EXPECT_EQ(listed.json["checkpoints"][1]["leftover"], true);
  EXPECT_EQ(
      prune_report(folder_.path(), {.keep = 1, .dry_run = true}).json["cleaned_up"].size(), 0U);
  EXPECT_TRUE(fs::exists(folder_ / name));
  const Report pruned = prune_report(folder_.path(), {.keep = 1});
  EXPECT_EQ(pruned.json["cleaned_up"], Json({name}));
  EXPECT_THAT(pruned.text, HasSubstr("removed " + (folder_ / name).string()));
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("one"));
}

TEST_F(CheckpointReports, DiffOfEqualRunsIsEmptyThoughEachSaveHasItsOwnId) {
  for (const char* name : {"one", "other"}) {
    storage::edit_manifest(
        save(name, some_files()), [&](Json& manifest) { manifest["meta"]["save_id"] = name; });
  }
  const Report report = diff_report(folder_ / "one", folder_ / "other");
  EXPECT_EQ(report.exit_code, 0);
  EXPECT_EQ(report.json["same"], true);
  EXPECT_EQ(report.json["meta_changed"], false);
}

TEST_F(CheckpointReports, DiffNamesTheKeysOfMetaThatDiffer) {
  const Json one = {{"gone", 1}, {"same", {1, 2}}, {"step", 7}};
  const Json other = {{"new", nullptr}, {"same", {1, 2}}, {"step", std::string(100, 'x')}};
  const Report report = diff_report(save("one", {}, one), save("other", {}, other));
  EXPECT_EQ(
      report.json["meta"],
      Json(
          {{{"key", "gone"}, {"change", "removed"}},
           {{"key", "new"}, {"change", "added"}},
           {{"key", "step"}, {"change", "content"}}}));
  EXPECT_THAT(
      report.text,
      AllOf(
          HasSubstr("removed  meta  gone"),
          HasSubstr("1 to none\n"),
          HasSubstr("none to null\n"),
          HasSubstr("7 to \"xxx")));
  EXPECT_EQ(diff_report(folder_ / "one", folder_ / "one").json["meta_changed"], false);
}

}  // namespace
}  // namespace lockstep::cli
