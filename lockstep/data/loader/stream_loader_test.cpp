// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/test_streams.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Json = nlohmann::json;
using Batches = std::vector<std::vector<int64_t>>;

static_assert(IterableDataset<Counting> && !Dataset<Counting> && !SizedDataset<Counting>);

struct StreamSetting {
  int64_t batch_size = 1;
  int world = 1;
  bool split = false;
  bool drop_last = false;
  bool even = true;
};

Loader<Counting> stream_loader(
    const Counting& source, const StreamSetting& setting, int rank, int workers) {
  Loader loader(
      source,
      {.batch_size = setting.batch_size, .drop_last = setting.drop_last, .workers = workers});
  loader.shard(
      {.rank = rank,
       .world = setting.world,
       .even_batches = setting.even,
       .split_batches = setting.split});
  return loader;
}

/// Returns the expected values of make_iterable.py for a case.
Json stream_batches(int64_t samples, const StreamSetting& setting) {
  Json yielded = Json::array();
  for (int rank = 0; rank < setting.world; ++rank) {
    auto loader = stream_loader(Counting(samples), setting, rank, 0);
    yielded.push_back(batches_of(loader));
  }
  return yielded;
}

template <typename Check>
void for_each_golden_case(const char* grid, Check check) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/iterable.json");
  const Json golden = Json::parse(file);
  for (const Json& entry : golden.at(grid)) {
    const StreamSetting setting{
        .batch_size = entry.at("batch_size"),
        .world = entry.at("world"),
        .split = entry.at("split_batches"),
        .drop_last = entry.at("drop_last")};
    int64_t samples = entry.at("first");
    for (const Json& expected : entry.at("cases")) {
      check(stream_batches(samples, setting), expected, entry.dump().substr(0, 90), samples);
      ++samples;
    }
  }
}

TEST(StreamLoader, EqualsAcceleratesIterableDatasetShard) {
  int cases = 0;
  const auto check = [&](const Json& got, const Json& expected, auto&& setting, int64_t samples) {
    ASSERT_EQ(got, expected) << samples << " samples, " << setting;
    ++cases;
  };
  for_each_golden_case("shard_small", check);
  EXPECT_GT(cases, 200);
}

TEST(StreamLoader, EqualsAcceleratesOnALargeGrid) {
  int cases = 0;
  const auto check = [&](const Json& got, const Json& expected, auto&& setting, int64_t samples) {
    const std::string text = got.dump();
    const auto hash =
        crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()));
    ASSERT_EQ(hash, expected.get<uint64_t>()) << samples << " samples, " << setting << text;
    ++cases;
  };
  for_each_golden_case("shard_large", check);
  EXPECT_GT(cases, 1500);
}

/// Compares the reported infos of all ranks' batches with a count of their samples.
void expect_said_what_is_seen(int64_t samples, const StreamSetting& setting) {
  std::vector<Batches> batches;
  std::vector<std::vector<BatchInfo>> infos;
  for (int rank = 0; rank < setting.world; ++rank) {
    auto loader = stream_loader(Counting(samples), setting, rank, samples % 2 == 0 ? 0 : 1);
    const auto recorder = std::make_shared<InfoRecorder>();
    loader.set_observer(recorder);
    batches.push_back(batches_of(loader));
    infos.push_back(recorder->infos);
    ASSERT_EQ(infos.back().size(), batches.back().size());
  }
  std::set<int64_t> seen;
  for (size_t i = 0; i < batches[0].size(); ++i) {
    std::vector<int64_t> rows;
    std::vector<int64_t> valid_rows;
    bool last_somewhere = false;
    for (const Batches& of_rank : batches) {
      const std::vector<int64_t> batch = i < of_rank.size() ? of_rank[i] : std::vector<int64_t>();
      rows.push_back(std::ssize(batch));
      valid_rows.push_back(0);
      for (const int64_t sample : batch) {
        valid_rows.back() += seen.insert(sample).second ? 1 : 0;
      }
      last_somewhere |= i + 1 == of_rank.size();
    }
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      if (i >= batches[rank].size()) {
        continue;
      }
      const BatchInfo& info = infos[rank][i];
      EXPECT_EQ(info.index, static_cast<int64_t>(i));
      EXPECT_EQ(info.is_last, i + 1 == batches[rank].size());
      EXPECT_EQ(info.is_last_somewhere, last_somewhere);
      EXPECT_EQ(info.rows, rows[rank]);
      EXPECT_EQ(info.rows_per_rank, rows);
      EXPECT_EQ(info.valid_rows, valid_rows);
    }
  }
  const int64_t round = setting.batch_size * (setting.split ? 1 : setting.world);
  EXPECT_EQ(std::ssize(seen), setting.drop_last ? samples / round * round : samples);
}

TEST(StreamLoader, CountsSamplesAndMarksTheLastBatch) {
  for (const int64_t batch_size : {2, 4}) {
    for (const int world : {1, 2, 4}) {
      for (const int flags : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const StreamSetting setting{
            batch_size, world, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0};
        if (setting.split && batch_size % world != 0) {
          continue;
        }
        for (int64_t samples = 0; samples < 20; ++samples) {
          expect_said_what_is_seen(samples, setting);
        }
      }
    }
  }
}

TEST(StreamLoader, ResumesAtEveryPositionOfItsEpoch) {
  const StreamSetting setting{.batch_size = 3, .world = 2};
  Batches all;
  std::vector<Cursor> cursors = {{}};
  auto unbroken = stream_loader(Counting(22), setting, 1, 1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : unbroken) {
      all.push_back(batch);
      cursors.push_back(unbroken.cursor());
    }
  }
  ASSERT_EQ(all.size(), 8U);
  EXPECT_EQ(all[0], (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(all[4], (std::vector<int64_t>{1003, 1004, 1005}));
  EXPECT_EQ(unbroken.cursor(), (Cursor{.epoch = 2}));
  for (size_t position = 0; position < cursors.size(); ++position) {
    auto resumed = stream_loader(Counting(22), setting, 1, 1);
    resumed.load_cursor(cursors[position]);
    Batches rest;
    while (resumed.epoch() < 2) {
      for (auto& batch : resumed) {
        rest.push_back(batch);
      }
    }
    EXPECT_EQ(rest, Batches(all.begin() + static_cast<int64_t>(position), all.end())) << position;
  }
}

TEST(StreamLoader, ACursorPastTheEndMakesAnEmptyPass) {
  Loader loader(Counting(5), {.batch_size = 2});
  loader.load_cursor({.batches = 100});
  EXPECT_TRUE(batches_of(loader).empty());
  EXPECT_EQ(loader.cursor(), (Cursor{.epoch = 1}));
  EXPECT_EQ(batches_of(loader).size(), 3U);
}

TEST(StreamLoader, ReadsNoFurtherAheadThanItSaysWhenTheLoopIsLeft) {
  const Counting source(1 << 30);
  Loader loader(source, {.batch_size = 4, .workers = 1, .prefetch_batches = 2});
  for (const auto& batch : loader) {
    EXPECT_THAT(batch, ElementsAre(0, 1, 2, 3));
    break;
  }
  // The batch, the one at work and two ahead, and the round after the last of them.
  EXPECT_LE(*source.samples_read, 4 * 5);
  EXPECT_EQ(loader.epoch(), 1);
  for (const auto& batch : loader) {
    EXPECT_EQ(batch.front(), 1000);
    break;
  }
}

TEST(StreamLoader, ThrowsTheStreamsExceptionOneBatchEarly) {
  for (const int workers : {0, 1}) {
    Counting source(100);
    source.broken = 57;
    Loader loader(source, {.batch_size = 10, .workers = workers});
    EXPECT_THROW(batches_of(loader), std::domain_error);
    EXPECT_EQ(loader.cursor().batches, 4);
  }
}

TEST(StreamLoader, RefusesOptionsWithoutMeaningForAStream) {
  EXPECT_THAT(
      [] { Loader(Counting(4), {.workers = 2}); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("one thread"), HasSubstr("workers = 2"))));
  EXPECT_THAT(
      [] { Loader(Counting(4), {.shuffle = true}); },
      ThrowsMessage<ConfigError>(HasSubstr("decides its own order; got shuffle = true")));
  Loader loader(Counting(4));
  EXPECT_THROW(loader.load_cursor({.batches = -1}), ConfigError);
  EXPECT_THROW(loader.load_cursor({.seed = 1}), ConfigError);
}

/// Lines of text: the five lines a user writes, and the default collate.
struct Words {
  std::vector<std::string> words;
  auto stream(int64_t /*epoch*/) const {
    return [this, i = size_t{0}]() mutable -> std::optional<std::string> {
      return i < words.size() ? std::optional(words[i++]) : std::nullopt;
    };
  }
  int64_t size() const { return promised; }
  int64_t promised = 3;
};

TEST(StreamLoader, NeedsNoCollateAndMayKnowItsSize) {
  Loader loader(Words{{"a", "b", "c"}}, {.batch_size = 2});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(loader.dataset_size(), 3);
  EXPECT_THAT(batches_of(loader), ElementsAre(ElementsAre("a", "b"), ElementsAre("c")));
}

TEST(StreamLoader, ResumesWhereAStreamOfMoreSamplesThanItPromisedWasLeft) {
  set_log_sink([](const std::string& /*the promise was not kept*/) {});
  const Words words{.words = {"a", "b", "c", "d", "e"}, .promised = 2};
  Loader loader(words);
  Cursor left;
  for (const auto& batch : loader) {
    left = loader.cursor();
    if (batch.front() == "d") {
      break;
    }
  }
  EXPECT_EQ(left, (Cursor{.batches = 4}));
  Loader resumed(words);
  resumed.load_cursor(left);
  resumed.shard({});
  EXPECT_THAT(batches_of(resumed), ElementsAre(ElementsAre("e")));
  Loader other(words);
  auto rest = skip_first_batches(other, 3);
  EXPECT_THAT(batches_of(rest), ElementsAre(ElementsAre("d"), ElementsAre("e")));
  set_log_sink({});
}

TEST(StreamLoader, SaysThatAStreamDidNotKeepItsPromise) {
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  Loader loader(Words{.words = {"a", "b"}, .promised = 3}, {.workers = 0});
  EXPECT_EQ(batches_of(loader).size(), 2U);
  set_log_sink({});
  EXPECT_THAT(lines, ElementsAre(HasSubstr("after 2 samples, but the dataset's size() is 3")));
}

}  // namespace
}  // namespace lockstep::data
