// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/test_numbers.h"
#include "lockstep/data/test_streams.h"

namespace lockstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<int64_t> part_of_epoch(int64_t epoch, int64_t first) {
  const std::vector<int64_t> order = RandomSampler(10, 5).order(epoch);
  return {order.begin() + first, order.end()};
}

template <typename L>
std::vector<int64_t> samples_of(L& loader) {
  std::vector<int64_t> samples;
  for (const auto& batch : loader) {
    samples.insert(samples.end(), batch.begin(), batch.end());
  }
  return samples;
}

TEST(SkipFirstBatches, ShortensOnePassAndContinuesWithTheNextEpoch) {
  const Numbers numbers(10);
  Loader loader(numbers, {.batch_size = 2, .shuffle = true, .seed = 5});
  auto rest = skip_first_batches(loader, 3);
  EXPECT_EQ(rest.id(), loader.id());
  EXPECT_EQ(samples_of(rest), part_of_epoch(0, 6));
  EXPECT_EQ(*numbers.batches_read, 2);
  // The next epoch is a new order, whole, by either handle.
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(samples_of(loader), part_of_epoch(1, 0));
  EXPECT_EQ(samples_of(rest), part_of_epoch(2, 0));
}

TEST(SkipFirstBatches, ByACopyOfItsHandleSkipsOnceAsWell) {
  Loader loader(Numbers(10), {.batch_size = 2, .shuffle = true, .seed = 5});
  auto rest = skip_first_batches(loader, 4);
  auto copy = rest;
  EXPECT_EQ(samples_of(copy), part_of_epoch(0, 8));
  EXPECT_EQ(samples_of(rest), part_of_epoch(1, 0));
}

TEST(SkipFirstBatches, DoesNotMoveALoaderThatIsThereAlready) {
  Loader loader(Numbers(10), {.batch_size = 2});
  loader.load_cursor({.epoch = 3, .batches = 3});
  auto rest = skip_first_batches(loader, 3);
  EXPECT_THAT(samples_of(rest), ElementsAre(6, 7, 8, 9));
  loader.load_cursor({.epoch = 3, .batches = 4});
  rest = skip_first_batches(loader, 1);
  EXPECT_THAT(samples_of(rest), ElementsAre(8, 9));
}

TEST(SkipFirstBatches, IsResumedFromWithin) {
  Loader loader(Numbers(10), {.batch_size = 2});
  Cursor left;
  for ([[maybe_unused]] auto& batch : skip_first_batches(loader, 2)) {
    left = loader.cursor();
    break;
  }
  EXPECT_EQ(left, (Cursor{.batches = 3}));
  Loader resumed(Numbers(10), {.batch_size = 2});
  resumed.load_cursor(left);
  EXPECT_THAT(samples_of(resumed), ElementsAre(6, 7, 8, 9));
}

TEST(SkipFirstBatches, ReadsAndDropsOfAStream) {
  Loader loader(Counting(9), {.batch_size = 2});
  loader.shard({.rank = 1, .world = 2});
  auto rest = skip_first_batches(loader, 1);
  EXPECT_THAT(samples_of(rest), ElementsAre(6, 7, 1, 2));
  EXPECT_THAT(samples_of(rest), ElementsAre(1002, 1003, 1006, 1007, 1001, 1002));
}

/// Ranks of which one has a batch less are given the same number by the same program.
TEST(SkipFirstBatches, IsAllowedOrRefusedOnAllRanks) {
  for (int rank = 0; rank < 2; ++rank) {
    Loader loader(Numbers(10), {.batch_size = 2});
    loader.shard({.rank = rank, .world = 2, .even_batches = false});
    EXPECT_EQ(loader.size(), rank == 0 ? 3 : 2);
    auto rest = skip_first_batches(loader, 3);
    EXPECT_TRUE(samples_of(rest).empty());
    EXPECT_EQ(loader.cursor(), (Cursor{.epoch = 1}));
    loader.load_cursor({.epoch = 1, .batches = 3});
    EXPECT_TRUE(samples_of(loader).empty());
    EXPECT_THAT(
        [&] { skip_first_batches(loader, 4); },
        ThrowsMessage<ConfigError>(HasSubstr("got 4, expected 0 to 3")));
  }
}

TEST(SkipFirstBatches, AllOfThemMakesAnEmptyPass) {
  Loader loader(Numbers(10), {.batch_size = 2});
  auto rest = skip_first_batches(loader, 5);
  EXPECT_TRUE(samples_of(rest).empty());
  EXPECT_EQ(loader.cursor(), (Cursor{.epoch = 1}));
  EXPECT_THAT(
      [&] { skip_first_batches(loader, 6); },
      ThrowsMessage<ConfigError>(HasSubstr("got 6, expected 0 to 5")));
  EXPECT_THROW(skip_first_batches(loader, -1), ConfigError);
}

}  // namespace
}  // namespace lockstep::data
