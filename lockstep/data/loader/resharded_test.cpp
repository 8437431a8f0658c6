// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/test_expected_batches.h"
#include "lockstep/data/test_numbers.h"
#include "lockstep/data/test_streams.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using Batches = std::vector<std::vector<int64_t>>;

std::vector<int64_t> order_of(const Numbers& numbers, int64_t epoch) {
  return RandomSampler(numbers.size(), 5).order(epoch);
}

std::vector<int64_t> order_of(const Counting& counting, int64_t epoch) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < counting.count; ++i) {
    order.push_back(1000 * epoch + i);
  }
  return order;
}

template <typename D>
Loader<D> resharded_loader(
    const D& source, const Layout& layout, const EndOptions& ends, int rank, Group dispatch = {}) {
  LoaderOptions options{.batch_size = layout.batch_size, .drop_last = ends.drop_last, .workers = 0};
  if constexpr (Dataset<D>) {
    options.shuffle = true;
    options.seed = 5;
  }
  Loader loader(source, options);
  const ShardSpec spec{
      .rank = rank,
      .world = layout.world,
      .even_batches = ends.even,
      .split_batches = layout.split,
      .dispatch_batches = dispatch.size() > 1};
  loader.shard(spec, std::move(dispatch));
  return loader;
}

constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();

/// A job that continues another one and stops after some rounds.
struct Job {
  Layout layout;
  int64_t rounds = kToTheEnd;
};

struct Saved {
  Cursor cursor;  ///< The cursor of rank 0.
  int64_t global_batch_rows = 0;
};

/// The batches of a job's first pass, and the position of rank 0 afterwards.
struct Outcome {
  std::vector<Batches> batches;  ///< Per rank.
  /// Per rank and batch: leading rows that the loader does not report as duplicates.
  std::vector<std::vector<int64_t>> valid_rows;
  Saved saved;
};

template <typename D>
Outcome run(
    const D& source, const Job& job, const EndOptions& ends, const std::optional<Saved>& from) {
  Outcome outcome;
  for (int rank = 0; rank < job.layout.world; ++rank) {
    auto loader = resharded_loader(source, job.layout, ends, rank);
    if (from) {
      loader.load_cursor(loader.resharded(from->cursor, from->global_batch_rows));
    }
    const auto recorder = std::make_shared<InfoRecorder>();
    loader.set_observer(recorder);
    Cursor cursor = loader.cursor();
    Batches batches;
    if (job.rounds > 0) {
      for (auto& batch : loader) {
        batches.push_back(batch);
        cursor = loader.cursor();
        if (std::ssize(batches) == job.rounds) {
          break;
        }
      }
    }
    if (job.rounds == kToTheEnd) {
      EXPECT_EQ(loader.cursor(), (Cursor{.seed = cursor.seed, .epoch = 1}));
      ExpectedBatches next_epoch(order_of(source, 1));
      Batches expected;
      for (auto round = next_epoch.deal(job.layout, ends); round;
           round = next_epoch.deal(job.layout, ends)) {
        if (!round->at(rank).empty()) {
          expected.push_back(round->at(rank));
        }
      }
      EXPECT_EQ(batches_of(loader), expected);
    }
    std::vector<int64_t> valid_rows;
    for (size_t i = 0; i < batches.size(); ++i) {
      valid_rows.push_back(recorder->infos[i].valid_rows[static_cast<size_t>(rank)]);
    }
    outcome.batches.push_back(std::move(batches));
    outcome.valid_rows.push_back(std::move(valid_rows));
    if (rank == 0) {
      outcome.saved = {cursor, loader.total_batch_size()};
    }
  }
  return outcome;
}

/// Compares jobs that continue one another with the pile. Returns false if the epoch ends before a
/// job has done its rounds, which is not a valid case.
template <typename D>
bool expect_exact(const D& source, const std::vector<Job>& jobs, const EndOptions& ends) {
  ExpectedBatches pile(order_of(source, 0));
  std::vector<int64_t> real;
  std::optional<Saved> saved;
  for (const Job& job : jobs) {
    std::vector<Batches> expected(static_cast<size_t>(job.layout.world));
    for (int64_t round = 0; round < job.rounds; ++round) {
      const std::optional<Batches> batches = pile.deal(job.layout, ends);
      if (!batches && job.rounds != kToTheEnd) {
        return false;
      }
      if (!batches) {
        break;
      }
      for (size_t rank = 0; rank < expected.size(); ++rank) {
        if (!batches->at(rank).empty()) {
          expected[rank].push_back(batches->at(rank));
        }
      }
    }
    const Outcome outcome = run(source, job, ends, saved);
    EXPECT_EQ(outcome.batches, expected);
    for (size_t i = 0; i < outcome.batches[0].size(); ++i) {
      for (size_t rank = 0; rank < outcome.batches.size(); ++rank) {
        if (i < outcome.batches[rank].size()) {
          const std::vector<int64_t>& rows = outcome.batches[rank][i];
          real.insert(real.end(), rows.begin(), rows.begin() + outcome.valid_rows[rank][i]);
        }
      }
    }
    saved = outcome.saved;
  }
  // The pile deals a beginning of the order; all of it unless drop_last.
  EXPECT_EQ(real, pile.seen());
  if (!ends.drop_last) {
    EXPECT_EQ(real, order_of(source, 0));
  }
  return true;
}

// Sanitizers see the same code in fewer cases, which take them 40 s less.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr int kMaxWorld = 4;
constexpr int kLeastCases = 5000;
#else
constexpr int kMaxWorld = 2;
constexpr int kLeastCases = 400;
#endif

std::vector<Layout> layouts(const std::vector<int64_t>& batch_sizes) {
  std::vector<Layout> all;
  for (int world = 1; world <= kMaxWorld; ++world) {
    for (const int64_t batch_size : batch_sizes) {
      all.push_back({.batch_size = batch_size, .world = world});
    }
    if (world > 1) {
      all.push_back({.batch_size = 2 * world, .world = world, .split = true});
    }
  }
  return all;
}

constexpr EndOptions kAllEnds[] = {{true, false}, {true, true}, {false, false}, {false, true}};

std::string text(const Job& job) {
  return std::to_string(job.layout.world) + " ranks, batch " +
         std::to_string(job.layout.batch_size) + (job.layout.split ? " split" : "") + ", " +
         std::to_string(job.rounds) + " rounds; ";
}

template <typename D>
class Resharded : public testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([](const std::string& /*a pass without batches*/) {});
  }
  void TearDown() override { set_log_sink({}); }
};

using Sources = testing::Types<Numbers, Counting>;
TYPED_TEST_SUITE(Resharded, Sources);

TYPED_TEST(Resharded, ResumesExactlyInAnyOtherLayoutFromEveryBatch) {
  int cases = 0;
  for (const int64_t samples : {1, 4, 13, 24}) {
    for (const EndOptions& ends : kAllEnds) {
      for (const Layout& before : layouts({1, 3})) {
        for (const Layout& after : layouts({1, 3})) {
          for (int64_t rounds = 0;; ++rounds, ++cases) {
            const std::vector<Job> jobs = {{before, rounds}, {after}};
            if (!expect_exact(TypeParam(samples), jobs, ends)) {
              break;
            }
            ASSERT_FALSE(this->HasFailure())
                << samples << " samples, even " << ends.even << ", drop_last " << ends.drop_last
                << ": " << text(jobs[0]) << text(jobs[1]);
          }
        }
      }
    }
  }
  EXPECT_GT(cases, kLeastCases);
}

TYPED_TEST(Resharded, ResumesExactlyAgainAndAgain) {
  int cases = 0;
  for (const EndOptions& ends : kAllEnds) {
    for (const Layout& first : layouts({2})) {
      for (const Layout& second : layouts({2})) {
        for (const Layout& third : layouts({1})) {
          for (int64_t rounds = 1; rounds < 4; ++rounds) {
            for (int64_t more = 0; more < 4; ++more, ++cases) {
              const std::vector<Job> jobs = {{first, rounds}, {second, more}, {third}};
              if (!expect_exact(TypeParam(19), jobs, ends)) {
                break;
              }
              ASSERT_FALSE(this->HasFailure()) << text(jobs[0]) << text(jobs[1]) << text(jobs[2]);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(cases, kLeastCases);
}

TYPED_TEST(Resharded, IsTheSavedCursorIfRoundsHaveEqualLength) {
  auto loader = resharded_loader(TypeParam(40), {.batch_size = 2, .world = 3}, {}, 0);
  const Cursor saved{.seed = loader.cursor().seed, .epoch = 2, .batches = 3, .first_sample = 5};
  EXPECT_EQ(loader.resharded(saved, 6), saved);
  EXPECT_EQ(
      loader.resharded(saved, 4),
      (Cursor{.seed = saved.seed, .epoch = 2, .batches = 0, .first_sample = 17}));
}

TYPED_TEST(Resharded, IsDispatchedAsItIsReadByEachRankItself) {
  for (const int64_t samples : {9, 16, 17}) {
    const auto before =
        run(TypeParam(samples), {.layout = {.batch_size = 2}, .rounds = 3}, {}, std::nullopt);
    ranks(3, [&](Group group) {
      Batches expected;
      for (const bool dispatched : {false, true}) {
        auto loader = resharded_loader(
            TypeParam(samples),
            {.batch_size = 1, .world = 3},
            {},
            group.rank(),
            dispatched ? group : Group());
        loader.load_cursor(loader.resharded(before.saved.cursor, before.saved.global_batch_rows));
        Batches batches = batches_of(loader);
        for (auto& batch : loader) {
          batches.push_back(batch);
        }
        if (dispatched) {
          EXPECT_EQ(batches, expected);
        }
        expected = batches;
      }
    });
  }
}

TEST(ReshardedLoader, RanksThatWouldContinueAtDifferentSamplesGetAnError) {
  ranks(2, [](Group group) {
    auto loader =
        resharded_loader(Numbers(12), {.batch_size = 2, .world = 2}, {}, group.rank(), group);
    loader.load_cursor({.seed = 5, .first_sample = 8 + 2 * group.rank()});
    if (group.rank() == 0) {
      EXPECT_EQ(batches_of(loader).size(), 1U);
      return;
    }
    EXPECT_THAT(
        [&] { batches_of(loader); },
        ThrowsMessage<Error>(AllOf(
            HasSubstr("(pass from sample 8, 4 samples per step), this rank"),
            HasSubstr("(pass from sample 10, 4 samples per step);"))));
  });
}

TEST(ReshardedLoader, ReadsNothingOfADatasetThatWasConsumed) {
  const Numbers numbers(12);
  auto loader = resharded_loader(numbers, {.batch_size = 2}, {}, 0);
  loader.load_cursor({.seed = 5, .first_sample = 9});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(batches_of(loader).size(), 2U);
  EXPECT_EQ(*numbers.batches_read, 2);
  EXPECT_EQ(loader.size(), 6);
}

TEST(ReshardedLoader, APassThatEndsEarlyIsFollowedByAFullEpoch) {
  auto loader = resharded_loader(Numbers(12), {.batch_size = 2}, {}, 0);
  loader.load_cursor({.seed = 5, .first_sample = 5});
  for ([[maybe_unused]] auto& batch : loader) {
    break;
  }
  EXPECT_EQ(loader.cursor(), (Cursor{.seed = 5, .batches = 1, .first_sample = 5}));
  EXPECT_EQ(loader.size(), 6);
  EXPECT_EQ(batches_of(loader).size(), 6U);
  EXPECT_EQ(loader.cursor(), (Cursor{.seed = 5, .epoch = 2}));
}

/// The count that a program kept is of batches of the layout that was left.
TEST(ReshardedLoader, IsNotMovedByBatchesThatAProgramSkipsAfterRestoring) {
  auto loader = resharded_loader(Counting(20), {.batch_size = 4, .world = 1}, {}, 0);
  loader.load_cursor(loader.resharded({.batches = 8}, 2));
  auto rest = skip_first_batches(loader, 8);
  EXPECT_THAT(batches_of(rest), ElementsAre(ElementsAre(16, 17, 18, 19)));
  auto shorter = skip_first_batches(loader, 4);
  EXPECT_THAT(batches_of(shorter), ElementsAre(ElementsAre(1016, 1017, 1018, 1019)));
}

TEST(ReshardedLoader, AStreamShorterThanItsCursorMakesAnEmptyPass) {
  auto loader = resharded_loader(Counting(5), {.batch_size = 2, .world = 2}, {}, 1);
  loader.load_cursor({.first_sample = 50});
  EXPECT_THAT(batches_of(loader), IsEmpty());
  EXPECT_THAT(batches_of(loader), ElementsAre(ElementsAre(1002, 1003), ElementsAre(1001, 1002)));
}

TEST(ReshardedLoader, RefusesPositionsOutsideTheData) {
  auto loader = resharded_loader(Numbers(12), {.batch_size = 2}, {}, 0);
  const auto refuses = [&](const Cursor& cursor, const std::string& why) {
    EXPECT_THAT([&] { loader.load_cursor(cursor); }, ThrowsMessage<ConfigError>(HasSubstr(why)));
  };
  refuses({.seed = 5, .first_sample = 13}, "got first_sample 13, expected 0 to 12");
  refuses({.seed = 5, .first_sample = -1}, "got first_sample -1");
  refuses({.seed = 5, .batches = 4, .first_sample = 7}, "batch 4, expected an epoch from 0 and");
  loader.load_cursor({.seed = 5, .batches = 3, .first_sample = 7});
  EXPECT_THAT(batches_of(loader), IsEmpty());

  const auto refuses_saved = [&](const Cursor& saved, int64_t rows, const std::string& why) {
    EXPECT_THAT([&] { loader.resharded(saved, rows); }, ThrowsMessage<ConfigError>(HasSubstr(why)));
  };
  refuses_saved(
      {.seed = 5, .batches = 3}, 8, "batch 3, expected an epoch from 0 and a batch from 0 to 2");
  refuses_saved({.seed = 5, .first_sample = 13}, 8, "got first_sample 13");
  refuses_saved({.seed = 5}, 0, "batch_size is out of range; got 0");
  auto stream = resharded_loader(Counting(12), {.batch_size = 2}, {}, 0);
  EXPECT_THROW(stream.resharded({.batches = kToTheEnd}, 8), ConfigError);
  EXPECT_THROW(stream.load_cursor({.batches = kToTheEnd}), ConfigError);
}

}  // namespace
}  // namespace lockstep::data
