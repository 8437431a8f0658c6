// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/tensor_difference.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::cli {
namespace {

using storage::Dtype;
using storage::OutputTensor;
using storage::raw_bytes;
using storage::StoredCheckpoint;
using storage::TensorSet;
using storage::TestFile;

class TensorDifferenceTest : public testing::Test {
 protected:
  TensorSet save(const std::string& name, const std::map<std::string, TestFile>& files) {
    storage::commit_checkpoint(folder_ / name, {{"step", 1}}, files);
    return TensorSet(StoredCheckpoint(folder_ / name), "model");
  }
  template <typename T>
  std::optional<TensorDifference> compare_values(
      Dtype dtype, const std::vector<T>& one, const std::vector<T>& other) {
    const auto set = [&](const std::string& name, const std::vector<T>& values) {
      const auto size = static_cast<int64_t>(values.size());
      return save(
          name,
          {{"model.safetensors",
            {{storage::output_tensor("w", dtype, {size}, raw_bytes(values))}}}});
    };
    const TensorSet one_set = set("one", one);
    const TensorSet other_set = set("other", other);
    return compare(one_set, one_set.tensor("w"), other_set, other_set.tensor("w"));
  }

  TestFolder folder_;
};

TEST_F(TensorDifferenceTest, OfEqualTensorsIsEmpty) {
  EXPECT_FALSE(compare_values<float>(Dtype::kF32, {1, 2, NAN}, {1, 2, NAN}));
  EXPECT_FALSE(compare_values<float>(Dtype::kF32, {}, {}));
}

TEST_F(TensorDifferenceTest, OfFloatsReportsCountAndLargestDifference) {
  const auto f32 = compare_values<float>(Dtype::kF32, {1, 2, -3, 4}, {1, 2.5, 1, 4});
  ASSERT_TRUE(f32);
  EXPECT_EQ(f32->elements, 2);
  EXPECT_EQ(f32->largest, 4.0);
  EXPECT_EQ(compare_values<double>(Dtype::kF64, {1e-300}, {5e-300})->largest, 5e-300 - 1e-300);
  // 1.0 and 1.5, 65504 and 2^-24, -2^-14 and 0, as bits.
  EXPECT_EQ(compare_values<uint16_t>(Dtype::kF16, {0x3c00}, {0x3e00})->largest, 0.5);
  EXPECT_EQ(
      compare_values<uint16_t>(Dtype::kF16, {0x7bff}, {0x0001})->largest,
      65504 - std::ldexp(1, -24));
  EXPECT_EQ(compare_values<uint16_t>(Dtype::kF16, {0x8400}, {0x0000})->largest, std::ldexp(1, -14));
  EXPECT_EQ(compare_values<uint16_t>(Dtype::kBF16, {0x3f80}, {0xc000})->largest, 3.0);
}

TEST_F(TensorDifferenceTest, OfNaNsIsNaN) {
  const auto zeros = compare_values<float>(Dtype::kF32, {0.0F}, {-0.0F});
  EXPECT_EQ(zeros->elements, 1);
  EXPECT_EQ(zeros->largest, 0.0);
  EXPECT_TRUE(std::isnan(*compare_values<float>(Dtype::kF32, {1, NAN, 1}, {9, 1, 5})->largest));
  EXPECT_TRUE(std::isinf(*compare_values<uint16_t>(Dtype::kF16, {0x7c00}, {0})->largest));
  EXPECT_TRUE(std::isnan(*compare_values<uint16_t>(Dtype::kF16, {0x7c01}, {0})->largest));
}

TEST_F(TensorDifferenceTest, OfOtherDtypesReportsTheCountOnly) {
  const auto difference = compare_values<int64_t>(Dtype::kI64, {1, 2, 3}, {1, 9, 9});
  EXPECT_EQ(difference->elements, 2);
  EXPECT_FALSE(difference->largest);
}

TEST_F(TensorDifferenceTest, DoesNotDependOnTheSlicesOfATensor) {
  std::vector<float> values(5000);
  std::iota(values.begin(), values.end(), 0.0F);
  /// The tensor in as many files as there are ends.
  const auto sliced = [&](const std::string& name, const std::vector<int64_t>& ends) {
    std::map<std::string, TestFile> files;
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const std::string file =
          fmt::format("model-{:05}-of-{:05}.safetensors", files.size() + 1, ends.size());
      const std::vector<float> part(values.begin() + begin, values.begin() + end);
      files[file] = {
          {storage::output_tensor("w", Dtype::kF32, {end - begin}, raw_bytes(part))},
          {{storage::kSlicesKey, storage::render_slices("test", {{"w", {{50, 100}, begin}}})}}};
      begin = end;
    }
    return save(name, files);
  };
  const TensorSet one = sliced("one", {1, 1024, 4999, 5000});
  const TensorSet same = sliced("same", {2500, 5000});
  EXPECT_FALSE(compare(one, one.tensor("w"), same, same.tensor("w")));
  values[1024] += 1;
  values[4999] -= 2;
  const TensorSet other = sliced("other", {1024, 1025, 5000});
  const auto difference = compare(one, one.tensor("w"), other, other.tensor("w"));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->elements, 2);
  EXPECT_EQ(difference->largest, 2.0);
}

}  // namespace
}  // namespace lockstep::cli
