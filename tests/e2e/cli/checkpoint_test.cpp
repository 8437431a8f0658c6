// SPDX-License-Identifier: Apache-2.0
// `lockstep checkpoint ls|show|verify|diff|prune` and `lockstep merge-weights`: exit codes, stdout,
// stderr, and files that Python reads.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/test_files.h"
#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

using storage::Dtype;
using storage::raw_bytes;
using storage::TestFile;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kPython = LOCKSTEP_PYTHON;

bool python_has(const std::string& modules) {
  return !kPython.empty() && run_command({kPython, "-c", "import " + modules}).code == 0;
}

class CheckpointCommands : public testing::Test {
 protected:
  CheckpointCommands() {
    save("first", 1);
    save("second", 2);
    save("launch", 3);  // Named like a command, which must not matter.
  }

  /// A model with one tensor in slices in two files.
  void save(const std::string& name, float value, const std::vector<int64_t>& shape = {2, 3}) {
    const auto part = [&](const std::vector<float>& values, int64_t begin) {
      return TestFile{
          {storage::output_tensor(
              "layer.weight",
              Dtype::kF32,
              {static_cast<int64_t>(values.size())},
              raw_bytes(values))},
          {{storage::kSlicesKey,
            storage::render_slices("test", {{"layer.weight", {shape, begin}}})}}};
    };
    TestFile second = part({4, 5}, 4);
    second.tensors.push_back(storage::output_tensor(
        "layer.bias", Dtype::kBF16, {2}, std::string("\x80\x3f\x00\x40", 4)));
    storage::commit_checkpoint(
        folder_ / name,
        {{"step", value}},
        {{"model-00001-of-00002.safetensors", part({value, 1, 2, 3}, 0)},
         {"model-00002-of-00002.safetensors", second}});
  }
  std::string path(const std::string& name = "") const { return (folder_.path() / name).string(); }

  /// Runs a command with --json; expects success and an empty stderr.
  static Json json_of(std::vector<std::string> words, int code = 0) {
    words.emplace_back("--json");
    const Outcome outcome = run_lockstep(words);
    EXPECT_EQ(outcome.code, code) << outcome.out;
    EXPECT_EQ(outcome.err, "");
    return Json::parse(outcome.out);
  }
  /// Runs a command that must be refused, as text and as JSON.
  static void refuses(const std::vector<std::string>& words, int code, const std::string& why) {
    const Outcome plain = run_lockstep(words);
    EXPECT_EQ(plain.code, code) << plain.out;
    EXPECT_EQ(plain.out, "");
    EXPECT_THAT(plain.err, AllOf(StartsWith("error: ["), HasSubstr(why)));
    const Json json = json_of(words, code);
    EXPECT_THAT(json["error"].get<std::string>(), HasSubstr(why));
    EXPECT_EQ(json["exit_code"], code);
    EXPECT_THAT(json["schema"].get<std::string>(), StartsWith("lockstep."));
  }

  TestFolder folder_;
};

TEST_F(CheckpointCommands, LsListsAFolder) {
  fs::remove(folder_ / "second" / "state.json");
  const Outcome outcome = run_lockstep({"checkpoint", "ls", path() + "/"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("\n  * launch "),
          HasSubstr("not valid: [state.json] cannot be opened"),
          Not(HasSubstr("\x1b"))));
  const Json json = json_of({"checkpoint", "ls", path()});
  EXPECT_EQ(json["schema"], "lockstep.checkpoint.ls/1");
  EXPECT_EQ(json["newest"], "launch");
  EXPECT_EQ(json["checkpoints"][0]["step"], 1.0);
}

TEST_F(CheckpointCommands, ShowShowsOne) {
  const Outcome outcome = run_lockstep({"checkpoint", "show", path("launch")});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("model: 2 tensors, 8 values, 28 B, in 2 files"));
  const Json json = json_of({"checkpoint", "show", path("launch")});
  EXPECT_EQ(json["schema"], "lockstep.checkpoint.show/1");
  EXPECT_EQ(json["sets"][0]["tensors"][1]["shape"], Json({2, 3}));
  refuses({"checkpoint", "show", path()}, 2, "try the newest one, " + path("launch"));
  fs::resize_file(folder_ / "first" / storage::kManifestName, 10);
  refuses({"checkpoint", "show", path("first")}, 1, "manifest.json");
}

TEST_F(CheckpointCommands, VerifyEndsWithOneIfAnythingIsDamaged) {
  EXPECT_EQ(run_lockstep({"checkpoint", "verify", path("first"), path("second")}).code, 0);
  const fs::path file = folder_ / "second" / "model-00001-of-00002.safetensors";
  storage::flip_bit(file, fs::file_size(file) - 1);
  const Outcome outcome = run_lockstep({"checkpoint", "verify", path("first"), path("second")});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("first: complete; "),
          HasSubstr("[model-00001-of-00002.safetensors: \"layer.weight\"] is damaged")));
  const Json json = json_of({"checkpoint", "verify", path("second")}, 1);
  EXPECT_EQ(json["schema"], "lockstep.checkpoint.verify/1");
  EXPECT_EQ(json["checkpoints"][0]["damage"][0]["tensor"], "layer.weight");
}

TEST_F(CheckpointCommands, VerifyFindsFaultsThatNoChecksumShows) {
  storage::edit_manifest(folder_ / "first", [](Json& manifest) {
    Json& files = manifest["files"];
    files.erase(std::find_if(files.begin(), files.end(), [](const Json& record) {
      return record["name"] == "model-00002-of-00002.safetensors";
    }));
  });
  save("second", 2, {5});
  const Outcome outcome = run_lockstep({"checkpoint", "verify", path("first"), path("second")});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("[model-00002-of-00002.safetensors] is missing; manifest.json lists 1 of 2"),
          HasSubstr("[model-00002-of-00002.safetensors: \"layer.weight\"] has a slice beyond the "
                    "end of the tensor; got elements 4 to 6 of 5")));
  const Json json = json_of({"checkpoint", "verify", path("second")}, 1);
  EXPECT_EQ(json["checkpoints"][0]["damage"][0]["tensor"], "layer.weight");
}

TEST_F(CheckpointCommands, ADeepSpeedCheckpointIsNamed) {
  const fs::path tag = folder_ / "theirs" / "global_step10";
  fs::create_directories(tag);
  for (const char* name :
       {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"}) {
    storage::write_bytes(tag / name, "PK");
  }
  storage::write_bytes(folder_ / "theirs" / "latest", "global_step10");
  storage::write_bytes(folder_ / "theirs" / "zero_to_fp32.py", "");
  const std::string how = "python " + path("theirs/zero_to_fp32.py") + " " + path("theirs") +
                          " OUT --safe_serialization --tag global_step10";
  for (const std::string& folder : {path("theirs"), tag.string()}) {
    for (const char* command : {"ls", "show"}) {
      refuses({"checkpoint", command, folder}, 1, "is a DeepSpeed checkpoint");
    }
    refuses({"merge-weights", folder, path("out")}, 1, how);
    const Outcome verified = run_lockstep({"checkpoint", "verify", folder});
    EXPECT_EQ(verified.code, 1);
    EXPECT_THAT(
        verified.out,
        AllOf(HasSubstr("is a DeepSpeed checkpoint"), HasSubstr("--safe_serialization")));
  }
  EXPECT_FALSE(fs::exists(path("out")));
  fs::rename(tag, folder_ / "global_step10");
  EXPECT_THAT(
      run_lockstep({"checkpoint", "ls", path()}).out,
      AllOf(HasSubstr("global_step10"), HasSubstr("is a DeepSpeed checkpoint")));
}

TEST_F(CheckpointCommands, DiffEndsWithOneIfTheyDiffer) {
  EXPECT_EQ(run_lockstep({"checkpoint", "diff", path("first"), path("first")}).code, 0);
  const Outcome outcome = run_lockstep({"checkpoint", "diff", path("first"), path("launch")});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("F32 [2, 3], 1 of 6 elements, by at most 2\n"));
  const Json json = json_of({"checkpoint", "diff", path("first"), path("launch")}, 1);
  EXPECT_EQ(json["schema"], "lockstep.checkpoint.diff/1");
  EXPECT_EQ(json["same"], false);
  EXPECT_EQ(json["tensors"][0]["largest"], 2.0);
}

TEST_F(CheckpointCommands, PruneRemovesTheOldest) {
  const Outcome dry = run_lockstep({"checkpoint", "prune", path(), "--keep=2", "--dry_run"});
  EXPECT_EQ(dry.code, 0);
  EXPECT_THAT(dry.out, HasSubstr("would remove " + path("first")));
  EXPECT_EQ(storage::names_in(folder_.path()).size(), 3U);
  const Json json = json_of({"checkpoint", "prune", path(), "--keep", "2"});
  EXPECT_EQ(json["schema"], "lockstep.checkpoint.prune/1");
  EXPECT_EQ(json["removed"][0]["name"], "first");
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("launch", "second"));
  refuses({"checkpoint", "prune", path()}, 2, "expected --keep N");
  refuses({"checkpoint", "prune", path(), "--keep", "0"}, 2, "keep is out of range");
}

TEST_F(CheckpointCommands, AWrongCallEndsWithTwo) {
  for (const char* command : {"ls", "show", "verify", "prune"}) {
    refuses({"checkpoint", command}, 2, "an argument is missing");
  }
  refuses(
      {"checkpoint", "diff", path("first")}, 2, "an argument is missing; expected two checkpoints");
  refuses({"checkpoint", "ls", path("absent")}, 2, "is not a folder");
  refuses({"merge-weights", path("first")}, 2, "expected a checkpoint and a folder to write to");
  refuses({"checkpoint"}, 2, "[lockstep checkpoint]");
  refuses({"checkpoint", "list"}, 2, "unknown command 'list'");
  refuses({"checkpoint", "prune", path(), "--keep", "x"}, 2, "--keep");
  refuses({"checkpoint", "ls", "--all", path()}, 2, "unknown option --all");
}

TEST_F(CheckpointCommands, HelpHasExamplesAndExitCodes) {
  for (const char* command : {"ls", "show", "verify", "diff", "prune"}) {
    const Outcome outcome = run_lockstep({"checkpoint", command, "--help"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(
        outcome.out,
        AllOf(
            HasSubstr(std::string("Usage: lockstep checkpoint ") + command),
            HasSubstr("Examples:\n"),
            HasSubstr("Exit code: 0")));
  }
  EXPECT_THAT(
      run_lockstep({"merge-weights", "-h"}).out,
      AllOf(HasSubstr("--max-shard-size SIZE"), HasSubstr("--dtype keep\n")));
}

TEST_F(CheckpointCommands, SafetensorsReadsMergedWeights) {
  const Json json =
      json_of({"merge-weights", path("launch"), path("out"), "--max-shard-size", "0.024KB"});
  EXPECT_EQ(json["schema"], "lockstep.merge-weights/1");
  EXPECT_THAT(
      storage::names_in(folder_ / "out"),
      ElementsAre(
          "model-00001-of-00002.safetensors",
          "model-00002-of-00002.safetensors",
          "model.safetensors.index.json"));
  refuses({"merge-weights", path("launch"), path("out")}, 2, "--force");
  refuses({"merge-weights", path(), path("x")}, 2, "try the newest one, " + path("launch"));
  refuses(
      {"merge-weights", path("launch"), path("x"), "--max-shard-size=5GiB"}, 2, "is not a size");
  refuses({"merge-weights", path("launch"), path("x"), "--dtype", "fp32"}, 2, "fp32");
  const Json kept = json_of({"merge-weights", path("launch"), path("kept"), "--dtype", "keep"});
  EXPECT_EQ(kept["converted"], 0);
  EXPECT_EQ(run_lockstep({"merge-weights", path("launch"), path("out"), "--force"}).code, 0);
  EXPECT_THAT(storage::names_in(folder_ / "out"), ElementsAre("model.safetensors"));
  if (!python_has("safetensors.torch")) {
    GTEST_SKIP() << "LOCKSTEP_PYTHON names no Python that has torch and safetensors";
  }
  const Outcome read = run_command(
      {kPython,
       "-c",
       "import sys, json; from safetensors.torch import load_file; "
       "d = load_file(sys.argv[1]); assert {str(v.dtype) for v in d.values()} == "
       "{'torch.float32'}; "
       "print(json.dumps({k: v.tolist() for k, v in d.items()}))",
       path("out/model.safetensors")});
  EXPECT_EQ(read.code, 0) << read.err;
  EXPECT_EQ(
      Json::parse(read.out),
      Json({{"layer.weight", {{3.0, 1.0, 2.0}, {3.0, 4.0, 5.0}}}, {"layer.bias", {1.0, 2.0}}}));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(CheckpointCommands, MergeShortOfMemoryNamesTensorAndSize) {
  constexpr int64_t kElements = int64_t{1} << 25;  // 64 MiB, and 128 in float32.
  storage::commit_checkpoint(
      folder_ / "large",
      {{"step", 1}},
      {{"model.safetensors",
        {{storage::output_tensor(
            "embed.weight",
            Dtype::kBF16,
            {kElements},
            std::string(size_t{2} * kElements, '\0'))}}}});
  const auto merge_within = [&](int kib) {
    return run_command(
        {"bash",
         "-c",
         "ulimit -v " + std::to_string(kib) + "; exec \"$@\"",
         "bash",
         LOCKSTEP_BIN_DIR "/lockstep",
         "merge-weights",
         path("large"),
         path("out")});
  };
  const Outcome short_of_buffer = merge_within(180 << 10);
  EXPECT_EQ(short_of_buffer.code, 1) << short_of_buffer.out;
  EXPECT_THAT(
      short_of_buffer.err,
      AllOf(
          HasSubstr("\"embed.weight\"] needs 134 MB (134217728 bytes) of memory"),
          HasSubstr("to be written as F32")));
  const Outcome short_of_map = merge_within(60 << 10);
  EXPECT_EQ(short_of_map.code, 1) << short_of_map.out;
  EXPECT_THAT(short_of_map.err, AllOf(HasSubstr("model.safetensors] cannot be mapped (671")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}
#endif

TEST_F(CheckpointCommands, APickleIsConvertedByTheCommandThatTheRefusalGives) {
  if (!python_has("safetensors.torch")) {
    GTEST_SKIP() << "LOCKSTEP_PYTHON names no Python that has torch and safetensors";
  }
  const fs::path folder = folder_ / "it's from $HOME";
  fs::create_directory(folder);
  // Tied weights, one that is not contiguous, and two shards.
  const Outcome made = run_command(
      {kPython,
       "-c",
       "import sys, torch; w = torch.arange(6.).reshape(2, 3); "
       "torch.save({'embed': w, 'head': w, 'turned': w.t()}, "
       "sys.argv[1] + '/pytorch_model-00001-of-00002.bin'); "
       "torch.save({'b': torch.ones(2, dtype=torch.bfloat16)}, "
       "sys.argv[1] + '/pytorch_model-00002-of-00002.bin')",
       folder.string()});
  ASSERT_EQ(made.code, 0) << made.err;
  std::string command;
  try {
    storage::open_model_files(folder);
  } catch (const CheckpointError& error) {
    const std::string message = error.what();
    command = message.substr(message.find("run: ") + 5);
  }
  ASSERT_THAT(command, StartsWith("python -c \""));
  const std::string with_our_python = "'" + kPython + "'" + command.substr(6);
  const Outcome converted = run_command({"sh", "-c", with_our_python});
  ASSERT_EQ(converted.code, 0) << converted.err;
  const auto files = storage::open_model_files(folder);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].names().size(), 4U);
  EXPECT_EQ(files[0].bytes(files[0].entry("head")), raw_bytes<float>({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(files[0].bytes(files[0].entry("turned")), raw_bytes<float>({0, 3, 1, 4, 2, 5}));
}

}  // namespace
}  // namespace lockstep::e2e
