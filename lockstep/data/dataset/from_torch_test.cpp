// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/from_torch.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/data/datasets/shared.h>
#include <torch/data/datasets/stateful.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/lambda.h>
#include <torch/data/transforms/stack.h>

#include "lockstep/base/error.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/collate.h"

namespace lockstep::data {
namespace {

namespace td = torch::data;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Example = td::Example<>;

/// As a program that used torch's DataLoader has it: get is neither const nor thread-safe.
struct Squares : td::datasets::Dataset<Squares> {
  explicit Squares(size_t samples) : count(samples) {}
  Example get(size_t index) override {
    EXPECT_EQ(readers++, 0);
    const auto number = static_cast<double>(index);
    Example example{at::full({2}, number), at::full({1}, number * number)};
    --readers;
    return example;
  }
  std::optional<size_t> size() const override { return count; }
  size_t count;
  int readers = 0;
};

at::Tensor column(const at::Tensor& batch) {
  return batch.select(1, 0).to(at::kLong);
}

TEST(FromTorch, ReadsAMappedDataSetAsTorchsDataLoaderDoes) {
  auto mapped = Squares(11)
                    .map(td::transforms::Lambda<Example>([](Example example) {
                      return Example{example.data + 100, example.target};
                    }))
                    .map(td::transforms::Stack<>());
  for (const int workers : {0, 1, 3}) {
    Loader loader(from_torch(mapped), {.batch_size = 4, .workers = workers});
    EXPECT_EQ(loader.size(), 3);
    int64_t next = 0;
    for (auto& batch : loader) {
      const int64_t rows = batch.data.size(0);
      const at::Tensor expected = at::arange(next, next + rows);
      EXPECT_TRUE(at::equal(column(batch.data), expected + 100));
      EXPECT_TRUE(at::equal(column(batch.target), expected * expected));
      const Example as_torchs = batch;
      EXPECT_TRUE(as_torchs.data.is_same(batch.data));
      next += rows;
    }
    EXPECT_EQ(next, 11);
  }
  static_assert(Transferable<Loader<TorchDataset<decltype(mapped)>>::Batch>);
}

TEST(FromTorch, WithoutStackABatchIsAVectorAndCollatedStacksIt) {
  Loader loader(from_torch(Squares(4)), {.batch_size = 4});
  const auto examples = *loader.begin();
  ASSERT_EQ(examples.size(), 4U);
  EXPECT_EQ(examples[3].target.item<float>(), 9);
  Loader stacked(collated(from_torch(Squares(4))), {.batch_size = 4});
  const auto batch = *stacked.begin();
  EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(batch.target.sizes(), (std::vector<int64_t>{4, 1}));
}

/// Has get_batch only, and batches of its own type.
struct Sums : td::datasets::BatchDataset<Sums, at::Tensor> {
  at::Tensor get_batch(c10::ArrayRef<size_t> indices) override {
    int64_t sum = 0;
    for (const size_t index : indices) {
      sum += static_cast<int64_t>(index);
    }
    return at::full({1}, sum, at::kLong);
  }
  std::optional<size_t> size() const override { return 10; }
};

TEST(FromTorch, ReadsADataSetThatHasGetBatchOnly) {
  Loader loader(from_torch(Sums()), {.batch_size = 5});
  std::vector<int64_t> sums;
  for (auto& batch : loader) {
    sums.push_back(batch.item<int64_t>());
  }
  EXPECT_THAT(sums, testing::ElementsAre(10, 35));
}

TEST(FromTorch, ReadsTorchsOwnAndSharedDataSets) {
  td::datasets::TensorDataset tensors(at::arange(6));
  Loader loader(
      from_torch(tensors.map(td::transforms::Stack<td::TensorExample>())), {.batch_size = 6});
  EXPECT_TRUE(at::equal((*loader.begin()).data, at::arange(6)));
  auto shared = td::datasets::make_shared_dataset<Sums>();
  Loader of_shared(from_torch(shared), {.batch_size = 10});
  EXPECT_EQ((*of_shared.begin()).item<int64_t>(), 45);
}

/// Cannot be copied, so that one worker at a time may read it.
struct Alone : td::datasets::Dataset<Alone> {
  Example get(size_t index) override {
    EXPECT_EQ((*readers)++, 0);
    const at::Tensor value = at::full({1}, static_cast<double>(index));
    --*readers;
    return {value, value};
  }
  std::optional<size_t> size() const override { return 40; }
  std::unique_ptr<std::atomic<int>> readers = std::make_unique<std::atomic<int>>(0);
};

TEST(FromTorch, ReadsOneThatCannotBeCopiedOneWorkerAtATime) {
  Loader loader(from_torch(Alone()), {.batch_size = 2, .workers = 4});
  int64_t next = 0;
  for (auto& batch : loader) {
    EXPECT_EQ(batch[0].data.item<float>(), static_cast<float>(next));
    next += 2;
  }
  EXPECT_EQ(next, 40);
}

/// Augments in get and in a transform, with torch's default generator.
struct Noisy : td::datasets::Dataset<Noisy> {
  Example get(size_t index) override {
    return {at::rand({1}), at::full({1}, static_cast<double>(index))};
  }
  std::optional<size_t> size() const override { return 30; }
};

TEST(FromTorch, RandomNumbersOfASampleDependOnSeedEpochAndSampleOnly) {
  const auto numbers = [](int workers, int64_t batch_size, int rank, int world) {
    auto mapped = Noisy()
                      .map(td::transforms::Lambda<Example>([](Example example) {
                        return Example{at::cat({example.data, at::rand({1})}), example.target};
                      }))
                      .map(td::transforms::Stack<>());
    Loader loader(
        from_torch(mapped),
        {.batch_size = batch_size, .shuffle = true, .seed = 4, .workers = workers});
    loader.shard({.rank = rank, .world = world, .even_batches = false});
    at::Tensor all = at::zeros({30, 2});
    for (auto& batch : loader) {
      all.index_put_({batch.target.to(at::kLong).flatten()}, batch.data);
    }
    return all;
  };
  const at::Tensor expected = numbers(0, 7, 0, 1);
  EXPECT_FALSE(at::equal(expected.select(1, 0), expected.select(1, 1)));
  EXPECT_TRUE(at::equal(numbers(4, 3, 0, 1), expected));
  EXPECT_TRUE(at::equal(numbers(1, 4, 0, 2) + numbers(1, 4, 1, 2), expected));
}

/// Yields 0, 1, ... 9 in twos after each reset().
struct Counter : td::datasets::StatefulDataset<Counter, std::vector<Example>> {
  std::optional<std::vector<Example>> get_batch(size_t request) override {
    if (next == 10) {
      return std::nullopt;
    }
    std::vector<Example> examples;
    for (size_t i = 0; i < request; ++i, ++next) {
      examples.emplace_back(at::full({1}, next), at::full({1}, -next));
    }
    return examples;
  }
  void reset() override { next = 0; }
  void save(torch::serialize::OutputArchive& /*archive*/) const override {}
  void load(torch::serialize::InputArchive& /*archive*/) override {}
  std::optional<size_t> size() const override { return std::nullopt; }
  int64_t next = 0;
};

TEST(FromTorch, AStatefulDatasetIsReadAsAStream) {
  for (int rank = 0; rank < 2; ++rank) {
    Loader loader(from_torch(Counter(), 2), {.batch_size = 1});
    loader.shard({.rank = rank, .world = 2});
    for (int epoch = 0; epoch < 2; ++epoch) {
      int64_t next = rank;
      for (auto& batch : loader) {
        EXPECT_EQ(batch.data.item<int64_t>(), next);
        EXPECT_EQ(batch.target.item<int64_t>(), -next);
        next += 2;
      }
      EXPECT_EQ(next, 10 + rank);
    }
  }
}

struct Endless : Sums {
  std::optional<size_t> size() const override { return std::nullopt; }
};

TEST(FromTorch, RefusesADataSetWithoutASize) {
  EXPECT_THAT(
      [] { from_torch(Endless()); },
      ThrowsMessage<ConfigError>(HasSubstr("the dataset has no size")));
}

}  // namespace
}  // namespace lockstep::data
