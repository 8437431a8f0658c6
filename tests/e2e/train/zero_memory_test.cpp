// SPDX-License-Identifier: Apache-2.0
// Stage 3 trains a model that does not fit into memory with data parallelism. merge-weights
// converts its checkpoint with less memory than the full weights take.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "lockstep/storage/safetensors/safetensors_map.h"
#include "tests/e2e/harness/run_command.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;

/// Runs four ranks, each with this limit of memory (`ulimit -d`); 0: no limit.
Outcome train(const std::string& stage, int limit_mib) {
  const std::string limit =
      limit_mib == 0 ? "" : "ulimit -d " + std::to_string(limit_mib * 1024) + "; ";
  return run_lockstep(
      {"launch", "-n", "4", "--quiet", "sh", "-c", limit + "exec " ZERO_FIXTURE " " + stage},
      {"OMP_NUM_THREADS=1"});
}

TEST(ZeroMemory, AModelIsTrainedUnderALimitThatDataParallelDoesNotFitIn) {
  constexpr int kLimitMib = 600;  // Data parallel takes 800, stage 3 about 430.
  const Outcome sharded = train("3", kLimitMib);
  EXPECT_EQ(sharded.code, 0) << sharded.err;
  EXPECT_THAT(sharded.out, HasSubstr("loss "));
  const Outcome whole = train("0", kLimitMib);
  EXPECT_NE(whole.code, 0);
  EXPECT_THAT(whole.err, HasSubstr("memory"));
  const Outcome unlimited = train("0", 0);
  EXPECT_EQ(unlimited.out, sharded.out) << "and to the digits printed the same";
}

TEST(ZeroLaunch, AProgramThatSetsNoStageTrainsAtThatOfItsLaunch) {
  const TestFolder folder;
  const auto saved_with = [&](const std::vector<std::string>& flags, const std::string& name) {
    std::vector<std::string> words = {"launch", "-n", "2", "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {ZERO_FIXTURE, "0", folder / name, "2"});
    const Outcome trained = run_lockstep(words, {"OMP_NUM_THREADS=1"});
    EXPECT_EQ(trained.code, 0) << trained.err;
    return std::filesystem::exists(folder / name / "model-00002-of-00002.safetensors");
  };
  EXPECT_FALSE(saved_with({}, "whole"));
  EXPECT_TRUE(saved_with({"--zero-stage", "3"}, "sharded"));
}

/// Runs `lockstep merge-weights` with this limit of address space, which includes the mapped files.
Outcome merge(const std::filesystem::path& from, const std::filesystem::path& to, int64_t limit) {
  return run_command(
      {"sh",
       "-c",
       "ulimit -v " + std::to_string(limit / 1024) +
           "; exec " LOCKSTEP_BIN_DIR "/lockstep merge-weights " + from.string() + " " +
           to.string()});
}

TEST(ZeroMerge, MakesOneFileOfTrainedParametersWithMemoryForAFewTensors) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  constexpr int kLayers = 24;
  const TestFolder folder;
  const auto saved_at = [&](const std::string& stage) {
    const std::filesystem::path path = folder / ("stage" + stage);
    const Outcome trained = run_lockstep(
        {"launch", "-n", "2", "--quiet", ZERO_FIXTURE, stage, path, std::to_string(kLayers)},
        {"OMP_NUM_THREADS=1"});
    EXPECT_EQ(trained.code, 0) << trained.err;
    return path;
  };
  // With two ranks the weights are bit-exact with data parallelism's.
  const storage::SafetensorsMap expected(saved_at("0") / "model.safetensors");
  EXPECT_EQ(expected.names().size(), 2U * kLayers);
  for (const std::string stage : {"1", "2", "3"}) {
    const std::filesystem::path from = saved_at(stage);
    EXPECT_EQ(std::filesystem::exists(from / "model-00002-of-00002.safetensors"), stage == "3");
    const std::filesystem::path to = folder / ("merged" + stage);
    // The program itself takes 20; all weights would take 97 more.
    const int64_t mapped = kLayers * 4 * kMiB;
    const Outcome merged = merge(from, to, mapped + 48 * kMiB);
    ASSERT_EQ(merged.code, 0) << merged.err;
    const storage::SafetensorsMap whole(to / "model.safetensors");
    ASSERT_EQ(whole.names(), expected.names());
    for (const storage::TensorEntry& entry : expected.entries()) {
      const storage::TensorEntry& got = whole.entry(entry.name);
      EXPECT_EQ(got.dtype, storage::Dtype::kF32);
      EXPECT_EQ(got.shape, entry.shape);
      EXPECT_TRUE(whole.bytes(got) == expected.bytes(entry)) << entry.name;
    }
    EXPECT_NE(merge(from, folder / "little", mapped).code, 0) << "the limit is one";
    std::filesystem::remove_all(from);
  }
}

}  // namespace
}  // namespace lockstep::e2e
