// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/collate.h"

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/pad.h"
#include "lockstep/data/test_streams.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

void expect_tensor(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(got, expected)) << got;
}

struct Picture {
  at::Tensor image;
  std::map<std::string, at::Tensor> boxes;
  LOCKSTEP_FIELDS(image, boxes)
};

struct Labelled {
  Picture picture;
  int label = 0;
  std::string path;
  LOCKSTEP_FIELDS(picture, label, path)
};

TEST(DefaultCollate, MakesTensorsOfNumbersWithTheDtypesOfTorch) {
  expect_tensor(default_collate(std::vector<int>{3, -1}), at::tensor({3, -1}, at::kLong));
  expect_tensor(default_collate(std::vector<uint8_t>{255}), at::tensor({255}, at::kLong));
  expect_tensor(default_collate(std::vector<float>{0.5F, 2}), at::tensor({0.5, 2.0}, at::kFloat));
  expect_tensor(default_collate(std::vector<double>{0.1}), at::tensor({0.1}, at::kDouble));
  expect_tensor(
      default_collate(std::vector<bool>{true, false}), at::tensor({1, 0}, at::kLong).to(at::kBool));
  // Beyond what a double holds exactly.
  expect_tensor(
      default_collate(std::vector<int64_t>{(int64_t{1} << 60) + 1}),
      at::full({1}, (int64_t{1} << 60) + 1, at::kLong));
}

TEST(DefaultCollate, StacksFieldByField) {
  const auto sample = [](int64_t i) {
    return Labelled{
        {at::full({2, 3}, i, at::kFloat), {{"one", at::full({4}, i, at::kInt)}}},
        static_cast<int>(i),
        "file " + std::to_string(i)};
  };
  // Pictures stay pictures; a label becomes a tensor, so what has one becomes a tuple.
  const std::tuple<Picture, at::Tensor, std::vector<std::string>> batch =
      default_collate(std::vector{sample(0), sample(1)});
  EXPECT_EQ(std::get<0>(batch).image.sizes(), at::IntArrayRef({2, 2, 3}));
  EXPECT_EQ(std::get<0>(batch).image[1][0][0].item<float>(), 1);
  EXPECT_EQ(std::get<0>(batch).boxes.at("one").sizes(), at::IntArrayRef({2, 4}));
  expect_tensor(std::get<1>(batch), at::tensor({0, 1}, at::kLong));
  EXPECT_THAT(std::get<2>(batch), ElementsAre("file 0", "file 1"));
}

TEST(DefaultCollate, TransposesContainers) {
  const auto lists = default_collate(std::vector<std::vector<int>>{{1, 2, 3}, {4, 5, 6}});
  ASSERT_EQ(lists.size(), 3U);
  expect_tensor(lists[2], at::tensor({3, 6}, at::kLong));
  const auto arrays = default_collate(std::vector<std::array<float, 2>>{{1, 2}});
  expect_tensor(arrays[1], at::tensor({2.0}, at::kFloat));
  const auto pairs = default_collate(std::vector<std::pair<int, std::string>>{{1, "a"}, {2, "b"}});
  expect_tensor(pairs.first, at::tensor({1, 2}, at::kLong));
  EXPECT_THAT(pairs.second, ElementsAre("a", "b"));
  const auto present = default_collate(std::vector<std::optional<int>>{1, 2});
  expect_tensor(*present, at::tensor({1, 2}, at::kLong));
  EXPECT_FALSE(default_collate(std::vector<std::optional<int>>(2)).has_value());
}

TEST(DefaultCollate, RefusesSamplesThatDoNotFitEachOther) {
  EXPECT_THAT(
      [] {
        default_collate(std::vector{at::zeros({2}), at::zeros({3})});
      },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("got Float[2] on cpu and Float[3] on cpu"), HasSubstr("pad_sequences"))));
  EXPECT_THROW(default_collate(std::vector{at::zeros({2}), at::zeros({2}, at::kInt)}), ConfigError);
  EXPECT_THROW(default_collate(std::vector{at::zeros({2}), at::Tensor()}), ConfigError);
  EXPECT_THAT(
      [] {
        default_collate(std::vector<std::vector<int>>{{1}, {}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("lists of different lengths")));
  using Map = std::map<std::string, int>;
  EXPECT_THAT(
      [] {
        default_collate(std::vector<Map>{{{"a", 1}}, {{"b", 1}}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("different keys")));
  EXPECT_THROW(default_collate(std::vector<std::optional<int>>{1, std::nullopt}), ConfigError);
}

/// Sentence i is the numbers 1 to i.
struct Sentences {
  int64_t size() const { return 7; }
  at::Tensor get(int64_t index) const { return at::arange(1, index + 1, at::kLong); }
};

TEST(Collated, MakesADatasetOfSamples) {
  Loader loader(
      collated(
          Sentences(),
          [](const std::vector<at::Tensor>& samples) {
            return pad_sequences(samples, {.value = -1});
          }),
      {.batch_size = 3, .workers = 2});
  const std::vector<PaddedBatch> batches = batches_of(loader);
  ASSERT_EQ(batches.size(), 3U);
  expect_tensor(batches[0].values, at::tensor({-1, -1, 1, -1, 1, 2}, at::kLong).view({3, 2}));
  expect_tensor(batches[0].lengths, at::tensor({0, 1, 2}, at::kLong));
  expect_tensor(
      batches[0].mask, at::tensor({0, 0, 1, 0, 1, 1}, at::kLong).to(at::kBool).view({3, 2}));
  EXPECT_EQ(batches[2].values.sizes(), at::IntArrayRef({1, 6}));
}

TEST(Collated, GivesAStreamAnotherCollate) {
  Loader loader(collated(Counting(5)), {.batch_size = 2});
  const std::vector<at::Tensor> batches = batches_of(loader);
  ASSERT_EQ(batches.size(), 3U);
  expect_tensor(batches[1], at::tensor({2, 3}, at::kLong));
  Loader sums(
      collated(
          Counting(5),
          [](const std::vector<int64_t>& samples) {
            return std::accumulate(samples.begin(), samples.end(), int64_t{0});
          }),
      {.batch_size = 2});
  EXPECT_THAT(batches_of(sums), ElementsAre(1, 5, 4));
}

TEST(PadSequences, PadsLeftToAMultipleAndKeepsOtherDimensions) {
  const PaddedBatch batch = pad_sequences(
      {at::full({2, 2}, 5.0), at::full({3, 2}, 6.0)}, {.left = true, .multiple_of = 4});
  EXPECT_EQ(batch.values.sizes(), at::IntArrayRef({2, 4, 2}));
  expect_tensor(
      batch.mask, at::tensor({0, 0, 1, 1, 0, 1, 1, 1}, at::kLong).to(at::kBool).view({2, 4}));
  expect_tensor(batch.values.sum({1, 2}), at::tensor({20.0, 36.0}, at::kFloat));
  expect_tensor(batch.lengths, at::tensor({2, 3}, at::kLong));
}

TEST(PadSequences, RefusesTensorsThatCannotBePadded) {
  EXPECT_THROW(pad_sequences({}), ConfigError);
  EXPECT_THROW(pad_sequences({at::zeros({})}), ConfigError);
  EXPECT_THROW(pad_sequences({at::Tensor()}), ConfigError);
  EXPECT_THROW(pad_sequences({at::zeros({1})}, {.multiple_of = 0}), ConfigError);
  EXPECT_THAT(
      [] {
        pad_sequences({at::zeros({2, 3}), at::zeros({2, 4})});
      },
      ThrowsMessage<ConfigError>(HasSubstr("got Float[2, 3] on cpu and Float[2, 4] on cpu")));
}

}  // namespace
}  // namespace lockstep::data
