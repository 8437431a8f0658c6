// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/loader.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/test_numbers.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Batches = std::vector<std::vector<int64_t>>;

Batches pass(Loader<Numbers>& loader) {
  Batches batches;
  for (auto& batch : loader) {
    batches.push_back(batch);
  }
  return batches;
}

int64_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(Loader, HandsOutTheDatasetInBatches) {
  Loader loader(Numbers(5), {.batch_size = 2});
  EXPECT_THAT(pass(loader), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(loader.batch_size(), 2);
  EXPECT_EQ(loader.total_batch_size(), 2);
  EXPECT_EQ(loader.dataset_size(), 5);
  EXPECT_EQ(loader.dataset().size(), 5);
  EXPECT_FALSE(loader.is_sharded());
}

TEST(Loader, DropsAShortLastBatchOnRequest) {
  Loader loader(Numbers(5), {.batch_size = 2, .drop_last = true});
  EXPECT_THAT(pass(loader), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(Loader, ChangesTheOrderWithEachEpoch) {
  Loader loader(Numbers(20), {.batch_size = 20, .shuffle = true, .seed = 4});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(loader.epoch(), epoch);
    EXPECT_EQ(pass(loader)[0], RandomSampler(20, 4).order(epoch));
  }
}

TEST(Loader, OrderDoesNotDependOnWorkers) {
  const auto two_epochs = [](int workers, int prefetch) {
    Loader loader(
        Numbers(1000),
        {.batch_size = 7, .shuffle = true, .workers = workers, .prefetch_batches = prefetch});
    Batches all = pass(loader);
    const Batches second = pass(loader);
    all.insert(all.end(), second.begin(), second.end());
    return all;
  };
  const Batches expected = two_epochs(0, 0);
  for (const int workers : {1, 2, 4}) {
    for (const int prefetch : {0, 1, 5}) {
      EXPECT_EQ(two_epochs(workers, prefetch), expected);
    }
  }
}

TEST(Loader, RanksTogetherCoverEverySample) {
  for (const bool split : {false, true}) {
    for (const bool even : {false, true}) {
      std::multiset<int64_t> seen;
      int64_t wrapped = 0;
      for (int rank = 0; rank < 3; ++rank) {
        Loader loader(Numbers(47), {.batch_size = 6, .shuffle = true, .workers = 2});
        loader.shard({.rank = rank, .world = 3, .even_batches = even, .split_batches = split});
        EXPECT_TRUE(loader.is_sharded());
        EXPECT_EQ(loader.total_batch_size(), split ? 6 : 18);
        int64_t index = 0;
        for (auto& batch : loader) {
          const int64_t valid = loader.core()->layout().valid_rows(index++, rank);
          seen.insert(batch.begin(), batch.begin() + valid);
          wrapped += std::ssize(batch) - valid;
        }
        EXPECT_EQ(index, loader.size());
      }
      EXPECT_EQ(seen.size(), 47U);
      EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 47U);
      EXPECT_EQ(wrapped, !even ? 0 : split ? 1 : 7);
    }
  }
}

TEST(Loader, ResumesAtEveryPositionWithoutReadingSkippedSamples) {
  const LoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 9};
  const ShardSpec spec{.rank = 1, .world = 2};
  const auto make = [&](const Numbers& numbers) {
    Loader loader(numbers, options);
    loader.shard(spec);
    return loader;
  };
  // Two unbroken epochs, with the position as it is inside the loop after each batch.
  Batches stream;
  std::vector<Cursor> cursors = {{.seed = 9}};
  Loader unbroken = make(Numbers(30));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : unbroken) {
      stream.push_back(batch);
      cursors.push_back(unbroken.cursor());
    }
  }
  EXPECT_EQ(unbroken.cursor(), (Cursor{.seed = 9, .epoch = 2, .batches = 0}));
  ASSERT_EQ(stream.size(), 8U);

  for (size_t position = 0; position < cursors.size(); ++position) {
    const Numbers numbers(30);
    Loader resumed = make(numbers);
    resumed.load_cursor(cursors[position]);
    EXPECT_EQ(resumed.cursor(), cursors[position]);
    Batches rest;
    while (resumed.epoch() < 2) {
      const Batches epoch = pass(resumed);
      rest.insert(rest.end(), epoch.begin(), epoch.end());
    }
    EXPECT_EQ(rest, Batches(stream.begin() + static_cast<int64_t>(position), stream.end()))
        << position;
    EXPECT_EQ(*numbers.batches_read, rest.size());
    EXPECT_EQ(resumed.cursor(), unbroken.cursor());
  }
}

TEST(Loader, ALoopThatEndsEarlyIsFollowedByTheNextEpochFromItsStart) {
  Loader loader(Numbers(20), {.batch_size = 5, .shuffle = true});
  for (auto& batch : loader) {
    if (loader.cursor().batches == 2) {
      batch.clear();
      break;
    }
  }
  EXPECT_EQ(loader.epoch(), 1);
  // ... while a job that stops here has not seen the rest of epoch 0.
  const Cursor left = loader.cursor();
  EXPECT_EQ(left, (Cursor{.seed = 0, .epoch = 0, .batches = 2}));

  const std::vector<int64_t> order = RandomSampler(20, 0).order(1);
  EXPECT_EQ(pass(loader)[0], std::vector<int64_t>(order.begin(), order.begin() + 5));
  EXPECT_EQ(loader.cursor(), (Cursor{.seed = 0, .epoch = 2, .batches = 0}));

  loader.load_cursor(left);
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_EQ(pass(loader).size(), 2U);
}

TEST(Loader, LeavesNoThreadBehind) {
  Loader loader(Numbers(100000), {.batch_size = 1, .workers = 3});
  const int64_t before = threads_of_this_process();
  for ([[maybe_unused]] auto& batch : loader) {
    EXPECT_EQ(threads_of_this_process(), before + 3);
    break;
  }
  EXPECT_EQ(threads_of_this_process(), before);
  EXPECT_LE(*loader.dataset().batches_read, 1 + 3 + 2 + 1);
}

TEST(Loader, ThrowsTheDatasetsExceptionAtExactlyThatBatch) {
  for (const int workers : {0, 1, 3}) {
    Numbers numbers(100);
    numbers.broken = 57;
    Loader loader(numbers, {.batch_size = 10, .workers = workers, .prefetch_batches = 4});
    int handed_out = 0;
    EXPECT_THROW(
        {
          for ([[maybe_unused]] auto& batch : loader) {
            ++handed_out;
          }
        },
        std::domain_error);
    EXPECT_EQ(handed_out, 5);
    EXPECT_EQ(loader.cursor().batches, 5);
  }
}

/// Fails once, and would continue after the failed sample.
struct Hiccup {
  explicit Hiccup(int64_t samples) : count(samples) {}
  auto stream(int64_t /*epoch*/) const {
    return [*this, next = int64_t{0}]() mutable -> std::optional<int64_t> {
      const int64_t sample = next++;
      if (sample == broken) {
        throw std::domain_error("broken sample");
      }
      return sample < count ? std::optional(sample) : std::nullopt;
    };
  }
  std::vector<int64_t> collate(std::vector<int64_t> samples) const { return samples; }
  int64_t count;
  int64_t broken = -1;
};

template <typename D>
void expect_failure_to_last(D source, int workers) {
  source.broken = 9;
  Loader loader(source, {.batch_size = 2, .workers = workers});
  auto iterator = loader.begin();
  std::vector<int64_t> seen = *iterator;
  int failures = 0;
  while (failures < 3 && iterator != loader.end()) {
    try {
      ++iterator;
      seen.insert(seen.end(), iterator->begin(), iterator->end());
    } catch (const std::domain_error&) {
      ++failures;
    }
  }
  EXPECT_EQ(failures, 3);
  EXPECT_EQ(std::ssize(seen), 2 * loader.cursor().batches);
  EXPECT_EQ(loader.epoch(), 0);
}

TEST(Loader, AfterAFailureThrowsAgainInsteadOfContinuingBehindIt) {
  for (const int workers : {0, 1}) {
    expect_failure_to_last(Numbers(20), workers);
    expect_failure_to_last(Hiccup(20), workers);
  }
}

TEST(Loader, CopiesAreHandlesOfOneLoader) {
  Loader loader(Numbers(4), {.batch_size = 2});
  auto copy = loader;
  EXPECT_EQ(copy.id(), loader.id());
  pass(copy);
  EXPECT_EQ(loader.epoch(), 1);
  copy.shard({.rank = 0, .world = 2});
  EXPECT_EQ(loader.size(), 1);
}

TEST(Loader, OutlivesItsHandlesInsideALoop) {
  auto loader = std::make_unique<Loader<Numbers>>(Numbers(6), LoaderOptions{.batch_size = 2});
  int batches = 0;
  for ([[maybe_unused]] auto& batch : *loader) {
    ++batches;
    if (batches == 1) {
      break;
    }
  }
  auto iterator = loader->begin();
  loader.reset();
  EXPECT_THAT(*iterator, ElementsAre(0, 1));
  ++iterator;
  EXPECT_THAT(*iterator, ElementsAre(2, 3));
}

TEST(Loader, RefusesASecondLoopInsideALoop) {
  Loader loader(Numbers(6), {.batch_size = 2});
  int batches = 0;
  for ([[maybe_unused]] auto& batch : loader) {
    ++batches;
    EXPECT_THAT(
        [&] { pass(loader); }, ThrowsMessage<ConfigError>(HasSubstr("a second loop began")));
  }
  EXPECT_EQ(batches, 3);  // The first loop did not notice.
}

TEST(Loader, AFinishedIteratorDoesNotDisturbTheNextPass) {
  Loader loader(Numbers(4), {.batch_size = 2});
  auto first = std::make_unique<Loader<Numbers>::Iterator>(loader.begin());
  ++*first;
  ++*first;
  ASSERT_TRUE(*first == loader.end());
  auto second = loader.begin();
  first.reset();
  EXPECT_EQ(loader.cursor(), (Cursor{.seed = 0, .epoch = 1, .batches = 1}));
}

/// Visits the samples in a given order, whatever the epoch; an index may be outside the dataset.
class Backwards final : public Sampler {
 public:
  explicit Backwards(std::vector<int64_t> order) : order_(std::move(order)) {}
  int64_t size() const override { return std::ssize(order_); }
  std::vector<int64_t> order(int64_t /*epoch*/) const override { return order_; }

 private:
  std::vector<int64_t> order_;
};

TEST(Loader, FollowsASamplerOfOnesOwn) {
  Loader loader(
      Numbers(10), {.batch_size = 2}, std::make_shared<Backwards>(std::vector<int64_t>{9, 5, 1}));
  EXPECT_EQ(loader.dataset_size(), 3);
  EXPECT_THAT(pass(loader), ElementsAre(ElementsAre(9, 5), ElementsAre(1)));
}

TEST(Loader, RefusesASamplerThatLeavesTheDataset) {
  Loader loader(Numbers(10), {}, std::make_shared<Backwards>(std::vector<int64_t>{3, 10}));
  EXPECT_THAT(
      [&] { pass(loader); }, ThrowsMessage<ConfigError>(HasSubstr("got 10, expected 0 to 9")));
}

TEST(Loader, NamesTheOptionThatIsWrong) {
  const auto refuses = [](const LoaderOptions& options, const std::string& why) {
    EXPECT_THAT([&] { Loader(Numbers(10), options); }, ThrowsMessage<ConfigError>(HasSubstr(why)));
  };
  refuses({.batch_size = 0}, "option batch_size is out of range; got 0");
  refuses({.workers = -1}, "option workers is out of range; got -1");
  refuses({.workers = 5000}, "option workers is out of range");
  refuses({.prefetch_batches = -1}, "option prefetch_batches is out of range");
  EXPECT_THAT(
      [] { Loader(Numbers(0), {}); },
      ThrowsMessage<ConfigError>(HasSubstr("the dataset is empty; got 0 samples")));
  const auto sampler = std::make_shared<SequentialSampler>(10);
  EXPECT_THAT(
      [&] { Loader(Numbers(10), {.shuffle = true}, sampler); },
      ThrowsMessage<ConfigError>(HasSubstr("no effect beside a sampler")));
  EXPECT_THROW(Loader(Numbers(10), {}, nullptr), ConfigError);
}

TEST(Loader, RefusesACursorThatIsNotItsOwn) {
  Loader loader(Numbers(10), {.batch_size = 5, .shuffle = true, .seed = 3});
  EXPECT_THAT(
      [&] { loader.load_cursor({.seed = 4}); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("got seed 4"), HasSubstr("this loader's seed 3"))));
  EXPECT_THAT(
      [&] { loader.load_cursor({.seed = 3, .batches = 3}); },
      ThrowsMessage<ConfigError>(
          HasSubstr("got epoch 0, batch 3, expected an epoch from 0 and a batch from 0 to 2")));
  EXPECT_THROW(loader.load_cursor({.seed = 3, .epoch = -1}), ConfigError);
  EXPECT_THROW(loader.load_cursor({.seed = 3, .batches = -1}), ConfigError);
  for ([[maybe_unused]] auto& batch : loader) {
    EXPECT_THAT(
        [&] { loader.load_cursor({.seed = 3}); },
        ThrowsMessage<ConfigError>(HasSubstr("during a pass")));
  }
  EXPECT_EQ(loader.cursor(), (Cursor{.seed = 3, .epoch = 1, .batches = 0}));
}

TEST(Loader, IsShardedOnce) {
  Loader loader(Numbers(12), {.batch_size = 3});
  loader.shard({.rank = 1, .world = 2});
  loader.shard({.rank = 1, .world = 2});
  EXPECT_THAT(
      [&] { loader.shard({.rank = 0, .world = 2}); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("was rank 1 of 2"), HasSubstr("got rank 0 of 2"))));
  Loader other(Numbers(12), {.batch_size = 3});
  EXPECT_THROW(other.shard({.world = 2, .split_batches = true}), ConfigError);
  EXPECT_FALSE(other.is_sharded());
  for ([[maybe_unused]] auto& batch : other) {
    EXPECT_THAT(
        [&] { other.shard({.world = 2}); }, ThrowsMessage<ConfigError>(HasSubstr("during a pass")));
  }
}

TEST(Loader, RefusesAShardThatEndsBeforeItsCursor) {
  Loader loader(Numbers(12), {.batch_size = 3});
  loader.load_cursor({.batches = 4});
  EXPECT_THAT(
      [&] { loader.shard({.world = 2}); },
      ThrowsMessage<ConfigError>(HasSubstr("outside the data")));
}

}  // namespace
}  // namespace lockstep::data
