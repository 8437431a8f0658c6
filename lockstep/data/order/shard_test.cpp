// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/order/shard.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Json = nlohmann::json;

struct ShardSetting {
  int64_t batch_size;
  int world;
  bool split_batches;
  bool even_batches;
  bool drop_last;
};

std::vector<int64_t> identity(int64_t samples) {
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

ShardPlan plan_of(int64_t samples, const ShardSetting& setting, int rank) {
  const ShardSpec spec{
      .rank = rank,
      .world = setting.world,
      .even_batches = setting.even_batches,
      .split_batches = setting.split_batches};
  return {identity(samples), setting.batch_size, setting.drop_last, spec};
}

ShardSetting read_setting(const Json& entry) {
  return {
      entry.at("batch_size"),
      entry.at("world"),
      entry.at("split_batches"),
      entry.at("even_batches"),
      entry.at("drop_last")};
}

/// Returns the expected values of make_sharding.py for a case.
Json batches_and_lengths(int64_t samples, const ShardSetting& setting) {
  Json yielded = Json::array();
  Json lengths = Json::array();
  for (int rank = 0; rank < setting.world; ++rank) {
    const ShardPlan plan = plan_of(samples, setting, rank);
    Json batches = Json::array();
    for (int64_t batch = 0; batch < plan.size(); ++batch) {
      batches.push_back(plan.indices(batch));
    }
    yielded.push_back(batches);
    // The one place where Accelerate's len() is not what it yields; see ShardLayout::size.
    const bool over_counted = setting.split_batches && !setting.even_batches && setting.world > 1;
    lengths.push_back(over_counted ? plan.layout().size(0) : plan.size());
  }
  return {yielded, lengths};
}

Json golden() {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/sharding.json");
  return Json::parse(file);
}

template <typename Check>
void for_each_setting(Check check) {
  for (const int64_t batch_size : {1, 2, 3, 4, 6}) {
    for (const int world : {1, 2, 3, 4}) {
      for (const int flags : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const ShardSetting setting{
            batch_size, world, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0};
        if (!setting.split_batches || batch_size % world == 0) {
          check(setting);
        }
      }
    }
  }
}

TEST(ShardPlan, EqualsAcceleratesBatchSamplerShard) {
  int cases = 0;
  const Json all = golden();
  for (const Json& entry : all.at("small_grid")) {
    const ShardSetting setting = read_setting(entry);
    int64_t samples = 0;
    for (const Json& expected : entry.at("cases")) {
      ASSERT_EQ(batches_and_lengths(samples, setting), expected)
          << samples << " samples, " << entry.dump().substr(0, 120);
      ++samples;
      ++cases;
    }
  }
  EXPECT_GT(cases, 500);
}

TEST(ShardPlan, EqualsAcceleratesOnALargeGrid) {
  int cases = 0;
  const Json all = golden();
  for (const Json& entry : all.at("large_grid")) {
    const ShardSetting setting = read_setting(entry);
    int64_t samples = 0;
    for (const Json& expected : entry.at("cases")) {
      const std::string text = batches_and_lengths(samples, setting).dump();
      const auto hash =
          crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()));
      ASSERT_EQ(hash, expected.get<uint64_t>()) << samples << " samples, " << text;
      ++samples;
      ++cases;
    }
  }
  EXPECT_GT(cases, 5000);
}

TEST(ShardPlan, ValidRowsInRankOrderAreEverySampleOnceAndInOrder) {
  for_each_setting([](const ShardSetting& setting) {
    for (int64_t samples = 0; samples <= 30; ++samples) {
      std::vector<ShardPlan> plans;
      plans.reserve(static_cast<size_t>(setting.world));
      for (int rank = 0; rank < setting.world; ++rank) {
        plans.push_back(plan_of(samples, setting, rank));
      }
      std::vector<int64_t> seen;
      for (int64_t batch = 0; batch < plans[0].size(); ++batch) {
        for (int rank = 0; rank < setting.world; ++rank) {
          // Any rank knows the counts of all.
          const int64_t valid = plans[0].valid_rows(batch, rank);
          const std::vector<int64_t> rows =
              batch < plans[rank].size() ? plans[rank].indices(batch) : std::vector<int64_t>();
          ASSERT_LE(valid, std::ssize(rows));
          ASSERT_EQ(plans[0].layout().rows(batch, rank), std::ssize(rows));
          seen.insert(seen.end(), rows.begin(), rows.begin() + valid);
        }
      }
      const int64_t round = plans[0].layout().global_batch_rows();
      ASSERT_EQ(seen, identity(setting.drop_last ? samples / round * round : samples));
    }
  });
}

TEST(ShardPlan, EvenRanksHaveEquallyManyFullBatches) {
  for_each_setting([](const ShardSetting& setting) {
    if (setting.world == 1 || !setting.even_batches) {
      return;
    }
    for (int64_t samples = 1; samples <= 30; ++samples) {
      for (int rank = 0; rank < setting.world; ++rank) {
        const ShardPlan plan = plan_of(samples, setting, rank);
        ASSERT_EQ(plan.size(), plan.layout().size(0));
        for (int64_t batch = 0; batch < plan.size(); ++batch) {
          ASSERT_EQ(std::ssize(plan.indices(batch)), plan.layout().batch_rows());
          ASSERT_EQ(plan.is_last(batch), batch == plan.size() - 1);
        }
      }
    }
  });
}

TEST(ShardPlan, WrapsToTheBeginningOfTheEpochsOwnOrder) {
  const ShardPlan plan({30, 10, 40, 20, 0}, 2, false, {.rank = 1, .world = 2});
  EXPECT_THAT(plan.indices(0), ElementsAre(40, 20));
  EXPECT_THAT(plan.indices(1), ElementsAre(10, 40));
  EXPECT_EQ(plan.valid_rows(1, 0), 1);
  EXPECT_EQ(plan.valid_rows(1, 1), 0);
}

TEST(ShardPlan, FewerSamplesThanRanksStillFeedEveryRank) {
  for (int rank = 0; rank < 4; ++rank) {
    const ShardPlan plan({8, 9}, 3, false, {.rank = rank, .world = 4});
    ASSERT_EQ(plan.size(), 1);
    EXPECT_EQ(plan.indices(0).size(), 3U);
    EXPECT_EQ(plan.valid_rows(0, rank), rank == 0 ? 2 : 0);
  }
}

TEST(ShardPlan, ALoneRankKeepsItsShortLastBatch) {
  const ShardPlan plan(identity(5), 2, false, {});
  ASSERT_EQ(plan.size(), 3);
  EXPECT_THAT(plan.indices(2), ElementsAre(4));
}

TEST(ShardPlan, HugeEpochsCostNothing) {
  const int64_t samples = int64_t{1} << 50;
  const ShardLayout layout(samples, 64, false, {.rank = 999, .world = 1000});
  EXPECT_EQ(layout.size(), (samples + 63999) / 64000);
  EXPECT_LT(layout.position(layout.size() - 1, 63, layout.spec().rank), samples);
}

TEST(ShardPlan, RefusesInvalidSizes) {
  const auto refuses = [](int64_t batch_size, const ShardSpec& spec, const std::string& why) {
    EXPECT_THAT(
        [&] { ShardLayout(10, batch_size, false, spec); },
        ThrowsMessage<ConfigError>(HasSubstr(why)));
  };
  refuses(
      3,
      {.world = 2, .split_batches = true},
      "got batch_size 3 for 2 ranks, expected a multiple of 2");
  refuses(0, {}, "batch_size is out of range; got 0");
  refuses(int64_t{1} << 39, {.world = 4}, "batch_size is out of range");
  refuses(1, {.rank = 2, .world = 2}, "got rank 2 of world 2");
  refuses(1, {.rank = -1, .world = 2}, "got rank -1");
  refuses(1, {.world = 0}, "world 0");
  EXPECT_THROW(ShardLayout(-1, 1, false, {}), ConfigError);
  EXPECT_THAT(
      [] {
        ShardPlan({1, 2, 3}, ShardLayout(4, 1, false, {}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("got 3 indices, expected 4")));
}

}  // namespace
}  // namespace lockstep::data
