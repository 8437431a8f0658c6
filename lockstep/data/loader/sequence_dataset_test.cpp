// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/sequence_dataset.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/data/loader/loader.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// 6 rows of 8 time steps; 4 time steps are left over, one of which is the last target.
const at::Tensor& corpus() {
  static const at::Tensor numbers = at::arange(52);
  return numbers;
}

TEST(SequenceLoader, RowsContinueFromBatchToBatch) {
  Loader loader = sequence_loader(corpus(), {.rows = 6, .length = 3});
  EXPECT_EQ(loader.size(), 3);
  const at::Tensor rows = at::arange(48).view({6, 8});
  int64_t begin = 0;
  for (auto& batch : loader) {
    const int64_t end = std::min<int64_t>(begin + 3, 8);
    EXPECT_EQ(batch.position, begin);
    EXPECT_TRUE(at::equal(batch.data, rows.slice(1, begin, end)));
    EXPECT_TRUE(at::equal(batch.target, rows.slice(1, begin, end) + 1));
    begin = end;
  }
  EXPECT_EQ(begin, 8);
}

TEST(SequenceLoader, EachRankKeepsItsRows) {
  for (const bool split : {false, true}) {
    for (const int world : {1, 2, 3, 6}) {
      for (int rank = 0; rank < world; ++rank) {
        Loader loader = sequence_loader(corpus(), {.rows = 6, .length = 3, .workers = 2});
        loader.shard({.rank = rank, .world = world, .split_batches = split});
        EXPECT_EQ(loader.size(), 3);
        std::vector<at::Tensor> batches;
        for (auto& batch : loader) {
          batches.push_back(batch.data);
        }
        const int64_t share = 6 / world;
        EXPECT_TRUE(at::equal(
            at::cat(batches, 1),
            at::arange(48).view({6, 8}).slice(0, rank * share, (rank + 1) * share)));
      }
    }
  }
}

TEST(SequenceLoader, ResumesOnEveryNumberOfRanksThatDividesTheRows) {
  for (const int world : {1, 2, 3}) {
    Loader loader = sequence_loader(corpus(), {.rows = 6, .length = 3});
    loader.shard({.rank = world - 1, .world = world});
    loader.load_cursor(loader.resharded({.seed = 3, .batches = 1}, 6));
    const auto batch = *loader.begin();
    EXPECT_EQ(batch.position, 3);
    EXPECT_EQ(batch.data[-1][0].item<int64_t>(), 5 * 8 + 3);
  }
}

TEST(SequenceLoader, KeepsTheFeaturesOfTimeSteps) {
  const at::Tensor signal = at::rand({41, 2});
  Loader loader = sequence_loader(signal, {.rows = 4, .length = 10});
  const auto batch = *loader.begin();
  EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{4, 10, 2}));
  EXPECT_TRUE(at::equal(batch.target[3], signal.slice(0, 31, 41)));
}

void expect_refused(const std::function<void()>& call, const std::string& why) {
  EXPECT_THAT(call, ThrowsMessage<ConfigError>(HasSubstr(why)));
}

TEST(SequenceLoader, RefusesPositionsOfAnotherShapeOfTheCorpus) {
  Loader loader = sequence_loader(corpus(), {.rows = 6, .length = 3});
  expect_refused(
      [&] { loader.resharded({.seed = 3, .batches = 1}, 4); },
      "got 4 rows, expected this loader's 6; make the loader with .rows = 4");
  expect_refused(
      [&] { loader.load_cursor({.seed = 4, .batches = 1}); },
      "got 4 time steps per batch, expected this loader's 3; make the loader with .length = 4");
}

TEST(SequenceLoader, RefusesSizesThatBreakTheRows) {
  const SequenceDataset dataset(corpus(), 6, 3);
  expect_refused([&] { Loader(dataset, {.batch_size = 2}); }, "try sequence_loader()");
  expect_refused([&] { Loader(dataset, {.batch_size = 6, .shuffle = true}); }, "shuffle = true");
  expect_refused([&] { dataset.get_batch(std::vector<int64_t>{1, 7}); }, "different batches");
  Loader loader = sequence_loader(corpus(), {.rows = 6, .length = 3});
  expect_refused(
      [&] { loader.shard({.rank = 0, .world = 4}); },
      "got 6 rows for 4 ranks, expected a multiple of 4");
  expect_refused([] { SequenceDataset(corpus(), 0, 3); }, "rows is out of range; got 0");
  expect_refused([] { SequenceDataset(corpus(), 2, 0); }, "length is out of range; got 0");
  expect_refused(
      [] { SequenceDataset(corpus(), 52, 1); },
      "got 52 time steps for 52 rows, expected at least 53");
}

}  // namespace
}  // namespace lockstep::data
