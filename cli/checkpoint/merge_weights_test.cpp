// SPDX-License-Identifier: Apache-2.0
// The dtype and the files of merged weights.
#include "cli/checkpoint/merge_weights.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/storage/model_files.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/test_files.h"
#include "lockstep/storage/write/model_shards.h"

namespace lockstep::cli {
namespace {

using storage::Dtype;
using storage::output_tensor;
using storage::raw_bytes;
using storage::SafetensorsMap;
using storage::TestFile;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

class MergeWeights : public testing::Test {
 protected:
  /// Tensors of each dtype; `sharded`, in bf16, is in both files.
  MergeWeights() {
    const auto part = [](const std::vector<uint16_t>& bits, int64_t begin) {
      return TestFile{
          {output_tensor(
              "sharded", Dtype::kBF16, {static_cast<int64_t>(bits.size())}, raw_bytes(bits))},
          {{storage::kSlicesKey, storage::render_slices("test", {{"sharded", {{2, 2}, begin}}})}}};
    };
    TestFile first = part({0x3f80, 0x4000, 0x4040}, 0);  // 1, 2, 3
    first.tensors.push_back(output_tensor("empty", Dtype::kBF16, {0}, ""));
    first.tensors.push_back(output_tensor("frozen", Dtype::kBF16, {1}, raw_bytes(kFrozen)));
    first.tensors.push_back(output_tensor("half", Dtype::kF16, {2}, raw_bytes(kHalf)));
    TestFile second = part({0xc080}, 3);  // -4
    second.tensors.push_back(output_tensor("master", Dtype::kF32, {1}, raw_bytes(kMaster)));
    second.tensors.push_back(output_tensor("steps", Dtype::kI64, {1}, raw_bytes(kSteps)));
    second.tensors.push_back(output_tensor("wide", Dtype::kF64, {1}, raw_bytes(kWide)));
    storage::commit_checkpoint(
        path_,
        {{"step", 1}},
        {{"model-00001-of-00002.safetensors", first},
         {"model-00002-of-00002.safetensors", second}});
  }

  /// The one file that is written.
  SafetensorsMap merged(const MergeOptions& options) const {
    const fs::path out = folder_ / "out";
    fs::remove_all(out);
    report_ = merge_weights(path_, out, options);
    EXPECT_THAT(storage::names_in(out), ElementsAre("model.safetensors"));
    return SafetensorsMap(out / "model.safetensors");
  }
  static void expect(
      const SafetensorsMap& file, const std::string& name, Dtype dtype, const std::string& bytes) {
    EXPECT_EQ(file.entry(name).dtype, dtype) << name;
    EXPECT_EQ(file.bytes(file.entry(name)), bytes) << name;
  }

  inline static const std::vector<uint16_t> kFrozen = {0x3eab};     // 0.333984375
  inline static const std::vector<uint16_t> kHalf = {0x3555, 0x1};  // 0.333251953125, 2^-24
  inline static const std::vector<float> kMaster = {1.001F};
  inline static const std::vector<int64_t> kSteps = {1234567890123};
  inline static const std::vector<double> kWide = {0.1};
  TestFolder folder_;
  fs::path path_ = folder_ / "step_1";
  mutable Report report_;
};

TEST_F(MergeWeights, AreOneFileOfFloat32WithTheSameValues) {
  const SafetensorsMap file = merged({});
  expect(file, "sharded", Dtype::kF32, raw_bytes<float>({1, 2, 3, -4}));
  EXPECT_THAT(file.entry("sharded").shape, ElementsAre(2, 2));
  expect(file, "empty", Dtype::kF32, "");
  expect(file, "frozen", Dtype::kF32, raw_bytes<float>({0.333984375F}));
  expect(file, "half", Dtype::kF32, raw_bytes<float>({0.333251953125F, 0x1p-24F}));
  expect(file, "master", Dtype::kF32, raw_bytes(kMaster));
  expect(file, "steps", Dtype::kI64, raw_bytes(kSteps));
  expect(file, "wide", Dtype::kF64, raw_bytes(kWide));
  EXPECT_EQ(report_.json["dtype"], "float32");
  EXPECT_EQ(report_.json["converted"], 4);
  EXPECT_EQ(report_.json["bytes"], 16 + 4 + 8 + 4 + 8 + 8);
  EXPECT_THAT(report_.text, HasSubstr("; 4 tensors converted to float32\n"));
}

TEST_F(MergeWeights, AreOneFileOfAnySize) {
  const std::vector<uint64_t> sizes(3, uint64_t{1} << 40);
  EXPECT_EQ(storage::split_into_shards(sizes, MergeOptions().max_shard_bytes).size(), 1U);
}

TEST_F(MergeWeights, KeepTheirSavedDtypeOnRequest) {
  const SafetensorsMap file = merged({.dtype = MergeDtype::kKeep});
  expect(file, "sharded", Dtype::kBF16, raw_bytes<uint16_t>({0x3f80, 0x4000, 0x4040, 0xc080}));
  expect(file, "frozen", Dtype::kBF16, raw_bytes(kFrozen));
  expect(file, "half", Dtype::kF16, raw_bytes(kHalf));
  expect(file, "master", Dtype::kF32, raw_bytes(kMaster));
  EXPECT_EQ(report_.json["converted"], 0);
}

TEST_F(MergeWeights, AreRoundedOnRequest) {
  const SafetensorsMap file = merged({.dtype = MergeDtype::kBFloat16});
  expect(file, "frozen", Dtype::kBF16, raw_bytes(kFrozen));
  expect(file, "half", Dtype::kBF16, raw_bytes<uint16_t>({0x3eab, 0x3380}));
  expect(file, "master", Dtype::kBF16, raw_bytes<uint16_t>({0x3f80}));
  expect(file, "wide", Dtype::kF64, raw_bytes(kWide));
  const SafetensorsMap half = merged({.dtype = MergeDtype::kFloat16});
  expect(half, "sharded", Dtype::kF16, raw_bytes<uint16_t>({0x3c00, 0x4000, 0x4200, 0xc400}));
  expect(half, "master", Dtype::kF16, raw_bytes<uint16_t>({0x3c01}));
}

TEST_F(MergeWeights, AreNotWrittenInATooNarrowDtype) {
  const std::vector<float> large = {1, 1e6F};
  storage::commit_checkpoint(
      path_,
      {{"step", 1}},
      {{"model.safetensors", {{output_tensor("large", Dtype::kF32, {2}, raw_bytes(large))}}}});
  EXPECT_THAT(
      [&] { merge_weights(path_, folder_ / "out", {.dtype = MergeDtype::kFloat16}); },
      ThrowsMessage<CheckpointError>(
          HasSubstr("\"large\"] has 1 value out of the range of F16; try --dtype bfloat16")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST(MergeDtypes, AreCalledAsTorchHasThem) {
  EXPECT_EQ(parse_merge_dtype("keep"), MergeDtype::kKeep);
  EXPECT_EQ(parse_merge_dtype("float32"), MergeDtype::kFloat32);
  EXPECT_EQ(parse_merge_dtype("float16"), MergeDtype::kFloat16);
  EXPECT_EQ(parse_merge_dtype("bfloat16"), MergeDtype::kBFloat16);
  EXPECT_THAT(
      [] { parse_merge_dtype("fp32"); },
      ThrowsMessage<ConfigError>(HasSubstr("expected one of keep, float32, float16, bfloat16")));
}

}  // namespace
}  // namespace lockstep::cli
