// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/model_files.h"

#include <functional>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/test_checkpoints.h"

namespace lockstep::storage {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Every tensor, by name, with its dtype, shape and bytes as text.
std::map<std::string, std::string> contents(const std::vector<SafetensorsMap>& files) {
  std::map<std::string, std::string> tensors;
  for (const SafetensorsMap& file : files) {
    for (const TensorEntry& entry : file.entries()) {
      std::string text = dtype_name(entry.dtype) + Json(entry.shape).dump();
      EXPECT_TRUE(tensors.emplace(entry.name, text.append(file.bytes(entry))).second);
    }
  }
  return tensors;
}

class ModelFiles : public testing::Test {
 protected:
  ModelFiles() {
    write_safetensors_file(folder_ / kOne, {tensor("a", 2), tensor("b", 3)});
    write_safetensors_file(folder_ / kTwo, {tensor("c", 4)});
    index_ = {
        {"metadata", {{"total_size", 9}}}, {"weight_map", {{"a", kOne}, {"b", kOne}, {"c", kTwo}}}};
    write_index();
  }
  static OutputTensor tensor(const std::string& name, int64_t elements) {
    return output_tensor(
        name, Dtype::kU8, {elements}, std::string(static_cast<size_t>(elements), name[0]));
  }
  void write_index() const { write_bytes(folder_ / kModelIndex, index_.dump()); }

  static void refuses(const fs::path& path, const fs::path& where, const std::string& what) {
    expect_refused([&] { open_model_files(path); }, "[" + where.string(), what);
  }
  void refuses(const fs::path& where, const std::string& what) const {
    write_index();
    refuses(folder_.path(), where, what);
  }

  static constexpr const char* kOne = "model-00001-of-00002.safetensors";
  static constexpr const char* kTwo = "model-00002-of-00002.safetensors";
  TestFolder folder_;
  Json index_;
};

TEST_F(ModelFiles, AreReadAsAccelerateWritesThem) {
  const auto one_file = contents(open_model_files(golden_path("model_whole")));
  EXPECT_EQ(one_file.size(), 6U);
  EXPECT_EQ(one_file.at("ln").substr(0, 8), "F16[6]\x0b\x30");
  EXPECT_EQ(contents(open_model_files(golden_path("model_whole") / kModelFile)), one_file);
  EXPECT_EQ(open_model_files(golden_path("model_shards")).size(), 4U);
  EXPECT_EQ(contents(open_model_files(golden_path("model_shards"))), one_file);
  EXPECT_EQ(contents(open_model_files(golden_path("model_shards") / kModelIndex)), one_file);
}

TEST_F(ModelFiles, OneShardCanBeReadAlone) {
  EXPECT_THAT(open_model_files(folder_ / kOne).at(0).names(), ElementsAre("a", "b"));
}

TEST_F(ModelFiles, ASingleFileHasPrecedenceOverAnIndex) {
  write_safetensors_file(folder_ / kModelFile, {tensor("x", 1)});
  EXPECT_THAT(open_model_files(folder_.path()).at(0).names(), ElementsAre("x"));
}

TEST_F(ModelFiles, AnIndexNeedNotSayASize) {
  index_.erase("metadata");
  write_index();
  EXPECT_EQ(open_model_files(folder_.path()).size(), 2U);
  index_["metadata"] = {{"format", "pt"}};
  write_index();
  EXPECT_EQ(open_model_files(folder_.path()).size(), 2U);
}

TEST_F(ModelFiles, AnIndexNamesPlainFilesInItsFolder) {
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", ""}) {
    index_["weight_map"]["a"] = name;
    refuses(folder_ / kModelIndex, "has an invalid file name");
  }
  index_["weight_map"]["a"] = 1;
  refuses(folder_ / kModelIndex, "\"a\"] is mapped to \"1\", expected the name of a file");
}

TEST_F(ModelFiles, AnIndexAndItsShardsMustAgree) {
  index_["weight_map"]["d"] = kOne;
  refuses(folder_ / kOne, "\"d\"] lacks a tensor that");
  index_["weight_map"].erase("d");
  index_["weight_map"]["b"] = kTwo;
  refuses(folder_ / kOne, "\"b\"] holds a tensor that");
  index_["weight_map"].erase("b");
  refuses(folder_ / kOne, "does not list");
  index_["weight_map"]["b"] = kOne;
  index_["weight_map"]["d"] = "model-00003-of-00003.safetensors";
  refuses(folder_ / "model-00003-of-00003.safetensors", "is missing;");
}

TEST_F(ModelFiles, AnIndexWithAWrongSizeIsReadWithAWarning) {
  std::vector<std::string> warnings;
  set_log_sink([&](const std::string& line) { warnings.push_back(line); });
  for (const Json& wrong : {Json(10), Json("many"), Json(nullptr)}) {
    index_["metadata"]["total_size"] = wrong;
    write_index();
    EXPECT_EQ(contents(open_model_files(folder_.path())).size(), 3U);
  }
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 3U);
  EXPECT_THAT(
      warnings[0],
      AllOf(
          HasSubstr("warning"),
          HasSubstr("[" + (folder_ / kModelIndex).string() + "]"),
          HasSubstr("wrong metadata.total_size; got \"10\", expected 9")));
}

TEST_F(ModelFiles, AnIndexMustBeOne) {
  for (const char* text : {"[]", "{}", R"({"weight_map": []})", "3"}) {
    write_bytes(folder_ / kModelIndex, text);
    refuses(folder_.path(), folder_ / kModelIndex, "is not an index of weights");
  }
  write_bytes(folder_ / kModelIndex, R"({"weight_map": {"a": "x", "a": "y"}})");
  refuses(folder_.path(), folder_ / kModelIndex, "has the key \"a\" twice");
  write_bytes(folder_ / kModelIndex, "{");
  refuses(folder_.path(), folder_ / kModelIndex, "is not valid JSON");
}

TEST_F(ModelFiles, MayBeLinksToFilesAsInTheCacheOfHuggingFace) {
  const auto plain = contents(open_model_files(folder_.path()));
  const fs::path blobs = folder_ / "blobs";
  const fs::path snapshot = folder_ / "snapshots" / "0123abcd";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  for (const char* name : {kOne, kTwo, kModelIndex}) {
    fs::rename(folder_ / name, blobs / name);
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  }
  EXPECT_EQ(contents(open_model_files(snapshot)), plain);
  EXPECT_EQ(contents(open_model_files(snapshot / kModelIndex)), plain);
  EXPECT_THAT(open_model_files(snapshot / kOne).at(0).names(), ElementsAre("a", "b"));
  fs::remove(blobs / kTwo);
  refuses(snapshot, snapshot / kTwo, "cannot be opened");
  fs::create_directory(blobs / kTwo);
  refuses(snapshot, snapshot / kTwo, "is not a regular file");
}

TEST_F(ModelFiles, OfACheckpointAreNotLinks) {
  const fs::path path = folder_ / "step_1";
  commit_checkpoint(path, {{"step", 1}}, {{kModelFile, {{tensor("a", 2)}}}});
  fs::rename(path / kModelFile, path / "elsewhere");
  fs::create_symlink("elsewhere", path / kModelFile);
  refuses(path, path / kModelFile, "is a symbolic link");
  refuses(path / kModelFile, path / kModelFile, "is a symbolic link");
}

TEST_F(ModelFiles, OfACheckpointHaveTheWrittenContent) {
  const fs::path path = folder_ / "step_1";
  commit_checkpoint(path, {{"step", 1}}, {{kModelFile, {{tensor("a", 2), tensor("b", 3)}}}});
  EXPECT_THAT(open_model_files(path).at(0).names(), ElementsAre("a", "b"));
  flip_bit(path / kModelFile, fs::file_size(path / kModelFile) - 1);
  refuses(path, path / kModelFile, "\"b\"] is damaged");
  fs::resize_file(path / kManifestName, 100);
  refuses(path, path / kManifestName, "");
}

TEST_F(ModelFiles, OneFileOfACheckpointHasTheWrittenContent) {
  const fs::path path = folder_ / "step_1";
  commit_checkpoint(path, {{"step", 1}}, {{kModelFile, {{tensor("a", 2), tensor("b", 3)}}}});
  const fs::path file = path / kModelFile;
  EXPECT_THAT(open_model_files(file).at(0).names(), ElementsAre("a", "b"));
  fs::copy(file, path / "copy.safetensors");
  refuses(path / "copy.safetensors", path, "has no file \"copy.safetensors\"");
  flip_bit(file, fs::file_size(file) - 1);
  refuses(file, file, "\"b\"] is damaged");
  fs::resize_file(path / kManifestName, fs::file_size(path / kManifestName) - 1);
  refuses(file, path / kManifestName, "");
  write_bytes(path / kManifestName, R"({"name": "an app for browsers"})");
  EXPECT_THAT(open_model_files(file).at(0).names(), ElementsAre("a", "b"));
}

TEST_F(ModelFiles, OfAnInterruptedSaveAreRefusedAsSuch) {
  fs::remove(folder_ / kModelIndex);
  refuses(folder_.path(), folder_.path(), "which is written last; the save was interrupted");
  EXPECT_THAT(
      [&] { open_model_files(folder_.path()); },
      ThrowsMessage<CheckpointError>(Not(HasSubstr("try one of its"))));
}

TEST_F(ModelFiles, AreNotPartsOfACheckpoint) {
  write_safetensors_file(
      folder_ / kModelFile,
      {tensor("a", 2)},
      {{kSlicesKey, render_slices("test", {{"a", {{4}, 0}}})}});
  refuses(folder_.path(), folder_ / kModelFile, "lockstep merge-weights");
  fs::remove(folder_ / kModelFile);
  fs::remove(folder_ / kModelIndex);
  const fs::path path = folder_ / "step_1";
  commit_checkpoint(path, {{"step", 1}}, {{kOne, {{tensor("a", 2)}}}});
  refuses(path, path, "try lockstep merge-weights " + path.string());
}

TEST_F(ModelFiles, WithOtherNamesAreSuggestedByTheRefusal) {
  fs::remove(folder_ / kModelIndex);
  fs::rename(folder_ / kOne, folder_ / "one.safetensors");
  fs::rename(folder_ / kTwo, folder_ / "two.safetensors");
  refuses(folder_.path(), folder_.path(), "try one of its 2 other .safetensors files, such as");
  refuses(folder_ / "absent", folder_ / "absent", "does not exist; expected the weights");
  fs::create_directory(folder_ / "empty");
  refuses(folder_ / "empty", folder_ / "empty", "holds no weights; expected model.safetensors or");
}

TEST_F(ModelFiles, AreNotPickles) {
  const fs::path folder = folder_ / "it's a folder";
  fs::create_directory(folder);
  const std::string quoted = "'" + folder_.path().string() + "/it'\\''s a folder/";
  for (const char* name : {"a.pt", "a.pth", "a.bin", "a.pkl", "a.ckpt"}) {
    write_bytes(folder / name, "");
    refuses(folder, folder / name, "runs code in it; to convert it, run: python -c \"import");
    refuses(folder, folder / name, fmt::format("\" {0}model.safetensors' {0}{1}'", quoted, name));
    refuses(folder / name, folder / name, fmt::format("{0}a.safetensors' {0}{1}'", quoted, name));
    fs::remove(folder / name);
  }
}

TEST_F(ModelFiles, AmongPicklesTheRefusalNamesThoseWithWeights) {
  fs::remove(folder_ / kModelIndex);
  fs::remove(folder_ / kOne);
  fs::remove(folder_ / kTwo);
  write_bytes(folder_ / "optimizer.bin", "");
  refuses(folder_.path(), folder_ / "optimizer.bin", "is a pickle");
  write_bytes(folder_ / "pytorch_model-00001-of-00002.bin", "");
  write_bytes(folder_ / "pytorch_model-00002-of-00002.bin", "");
  const std::string prefix = " " + folder_.path().string() + "/";
  const std::string both = prefix + "model.safetensors" + prefix +
                           "pytorch_model-00001-of-00002.bin" + prefix +
                           "pytorch_model-00002-of-00002.bin";
  refuses(folder_.path(), folder_ / "pytorch_model-00001-of-00002.bin", both);
  const fs::path index = write_bytes(
      folder_ / "pytorch_model.bin.index.json",
      R"({"weight_map": {"a": "pytorch_model-00001-of-00002.bin",
                         "b": "pytorch_model-00002-of-00002.bin"}})");
  refuses(index, folder_ / "pytorch_model-00001-of-00002.bin", both);
  write_bytes(folder_ / "pytorch_model.bin", "");
  EXPECT_THAT(
      [&] { open_model_files(folder_.path()); },
      ThrowsMessage<CheckpointError>(
          AllOf(HasSubstr(prefix + "pytorch_model.bin"), Not(HasSubstr("00001")))));
}

}  // namespace
}  // namespace lockstep::storage
