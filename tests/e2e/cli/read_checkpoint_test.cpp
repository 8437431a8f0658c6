// SPDX-License-Identifier: Apache-2.0
// scripts/read_checkpoint.py, which implements docs/checkpoint-format.md, reads the same weights
// from real checkpoints as `lockstep merge-weights`.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/storage/model_files.h"
#include "lockstep/storage/tensor_set.h"
#include "lockstep/storage/test_files.h"
#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kReader = LOCKSTEP_SOURCE_DIR "/scripts/read_checkpoint.py";
const std::string kOneThread = "OMP_NUM_THREADS=1";

/// Returns a Python with numpy; empty without one.
std::string python_with_numpy() {
  for (const std::string python : {LOCKSTEP_PYTHON, "python3"}) {
    if (!python.empty() && run_command({python, "-c", "import numpy"}).code == 0) {
      return python;
    }
  }
  return "";
}

/// Dtype, shape and bytes of each tensor.
std::map<std::string, std::string> contents(const fs::path& file) {
  std::map<std::string, std::string> tensors;
  const storage::SafetensorsMap map(file);
  for (const storage::TensorEntry& entry : map.entries()) {
    std::string text = storage::dtype_name(entry.dtype) + nlohmann::json(entry.shape).dump();
    tensors[entry.name] = text.append(map.bytes(entry));
  }
  return tensors;
}

class ReadCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    if (python_.empty()) {
      GTEST_SKIP() << "neither LOCKSTEP_PYTHON nor python3 has numpy";
    }
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  static void train(const std::vector<std::string>& program) {
    const Outcome outcome = run_lockstep(launch("2", program), {kOneThread});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  /// Writes a configuration of the engine with a stage of ZeRO that shards every parameter.
  std::string config(int stage, const std::string& more) const {
    const std::string file = path("ds_config.json");
    std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )"
                        << stage << "}" << more << "}";
    return file;
  }
  std::map<std::string, std::string> read(
      const std::vector<std::string>& checkpoints, const std::string& set = "model") const {
    std::vector<std::string> words = {python_, kReader};
    words.insert(words.end(), checkpoints.begin(), checkpoints.end());
    words.insert(words.end(), {"--set", set, "--output", path("read.safetensors")});
    const Outcome outcome = run_command(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? contents(path("read.safetensors"))
                             : std::map<std::string, std::string>();
  }
  std::map<std::string, std::string> merged(const std::string& checkpoint) const {
    fs::remove_all(path("merged"));
    const Outcome outcome = run_lockstep({"merge-weights", checkpoint, path("merged")});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return contents(path("merged") + "/" + storage::kModelFile);
  }
  void expect_same_weights(const std::string& checkpoint) const {
    const auto weights = merged(checkpoint);
    EXPECT_THAT(weights, Not(IsEmpty()));
    EXPECT_TRUE(read({checkpoint}) == weights);
  }
  /// Returns the reader's error for a checkpoint that it refuses.
  std::string refusal(const std::string& checkpoint) const {
    const Outcome outcome = run_command({python_, kReader, checkpoint});
    EXPECT_EQ(outcome.code, 1);
    return outcome.err;
  }

  const std::string python_ = python_with_numpy();
  TestFolder folder_;
};

TEST_F(ReadCheckpoint, ReadsAnExamplesCheckpointOfEveryStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const std::string output = path("stage_" + std::to_string(stage));
    train(
        {LOCKSTEP_BIN_DIR "/char_lm",
         "--data",
         LOCKSTEP_SOURCE_DIR "/LICENSE",
         "--layers",
         "2",
         "--heads",
         "2",
         "--width",
         "32",
         "--context",
         "32",
         "--sample",
         "1",
         "--warmup",
         "1",
         "--steps",
         "2",
         "--batch-size",
         "4",
         "--precision",
         "no",
         "--output",
         output,
         "--zero",
         std::to_string(stage)});
    expect_same_weights(output + "/checkpoints/checkpoint_0");
  }
}

TEST_F(ReadCheckpoint, ReadsCheckpointsOfSharedParameters) {
  train({ZERO_FIXTURE, "0", path("shared"), "1", "shared"});
  expect_same_weights(path("shared"));
}

TEST_F(ReadCheckpoint, ReadsTheFp32MastersOfTrainingIn16Bits) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const std::string tags = path("stage_" + std::to_string(stage));
    const std::string bf16 =
        R"(, "bf16": {"enabled": true}, "data_types": {"param_dtype": "bf16"})";
    train(
        {ENGINE_FIXTURE, "--config", config(stage, bf16), "--checkpoints", tags, "--updates", "3"});
    const std::string saved = tags + "/after_3";
    ASSERT_TRUE(fs::exists(saved + "/model-00001-of-00002.safetensors")) << "masters are sharded";
    expect_same_weights(saved);
  }
}

TEST_F(ReadCheckpoint, ReadsAnOptimizersStateInSlices) {
  train(
      {ENGINE_FIXTURE, "--config", config(2, ""), "--checkpoints", path("tags"), "--updates", "3"});
  const storage::StoredCheckpoint stored(path("tags") + "/after_3");
  const storage::TensorSet set(stored, "optimizer");
  std::map<std::string, std::string> expected;
  for (const storage::SetTensor& tensor : set.tensors()) {
    std::string text = storage::dtype_name(tensor.dtype) + nlohmann::json(tensor.shape).dump();
    for (const storage::TensorSlice& piece : tensor.slices) {
      text.append(set.bytes(piece));
    }
    expected[tensor.name] = text;
  }
  EXPECT_TRUE(expected.contains("last.weight.exp_avg"));
  EXPECT_TRUE(read({path("tags") + "/after_3"}, "optimizer") == expected);
}

TEST_F(ReadCheckpoint, JoinsTheFilesOfTwoHostsOnSeparateDisks) {
  const auto train_at = [&](const std::string& more, const std::string& prefix) {
    // Each rank acts as the only rank of a host.
    const std::string script = prefix + "exec " ENGINE_FIXTURE " --config " + config(3, more) +
                               " --updates 3 --checkpoints " + path("disk");
    train({"sh", "-c", script + (prefix.empty() ? "" : "$RANK")});
  };
  train_at("", "");
  train_at(
      R"(, "checkpoint": {"use_node_local_storage": true})",
      "export LOCAL_WORLD_SIZE=1 LOCAL_RANK=0; ");
  const std::string first = path("disk0") + "/after_3";
  const std::string second = path("disk1") + "/after_3";
  ASSERT_TRUE(fs::exists(second + "/model_part_of_rank_1.safetensors"));
  EXPECT_TRUE(read({first, second}) == merged(path("disk") + "/after_3"));
  EXPECT_THAT(refusal(first), HasSubstr("got the files of 1 ranks, expected 2"));
}

TEST_F(ReadCheckpoint, SeesDamageAndAPartThatIsNotListed) {
  train(
      {ENGINE_FIXTURE, "--config", config(3, ""), "--checkpoints", path("tags"), "--updates", "1"});
  const fs::path saved = path("tags") + "/after_1";
  const fs::path part = saved / "model-00002-of-00002.safetensors";
  storage::flip_bit(part, fs::file_size(part) - 1);
  EXPECT_THAT(refusal(saved), HasSubstr("model-00002-of-00002.safetensors: is damaged"));
  storage::flip_bit(part, fs::file_size(part) - 1);
  expect_same_weights(saved);
  storage::edit_manifest(saved, [](nlohmann::json& manifest) {
    nlohmann::json kept = nlohmann::json::array();
    for (const nlohmann::json& record : manifest["files"]) {
      if (record["name"] != "model-00001-of-00002.safetensors") {
        kept.push_back(record);
      }
    }
    manifest["files"] = kept;
  });
  EXPECT_THAT(refusal(saved), HasSubstr("got the parts [2], expected 1 to 2"));
  storage::flip_bit(saved / storage::kManifestName, 100);
  EXPECT_THAT(refusal(saved), HasSubstr("manifest.json: is damaged"));
}

}  // namespace
}  // namespace lockstep::e2e
