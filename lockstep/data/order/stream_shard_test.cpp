// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/order/stream_shard.h"

#include <algorithm>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using Json = nlohmann::json;

/// Returns the rank's samples of a stream 0, 1, ... that is read one sample at a time.
std::vector<int64_t> kept(const StreamShard& shard, int64_t samples) {
  std::vector<int64_t> all;
  for (int64_t round = 0; round * shard.round_rows() < samples; ++round) {
    const int64_t read = std::min((round + 1) * shard.round_rows(), samples);
    const auto positions = shard.positions(round, read);
    all.insert(all.end(), positions.begin(), positions.end());
  }
  return all;
}

/// Returns the samples of a rank's batches.
std::vector<int64_t> samples_of(const Json& batches) {
  std::vector<int64_t> all;
  for (const Json& batch : batches) {
    for (const Json& sample : batch) {
      all.push_back(sample);
    }
  }
  return all;
}

TEST(StreamShard, EqualsAcceleratesIterableDatasetShard) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/iterable.json");
  const Json golden = Json::parse(file);
  int cases = 0;
  for (const Json& entry : golden.at("shard_small")) {
    int64_t samples = entry.at("first");
    for (const Json& of_ranks : entry.at("cases")) {
      for (int rank = 0; rank < std::ssize(of_ranks); ++rank) {
        const StreamShard shard(
            entry.at("batch_size"),
            entry.at("drop_last"),
            entry.at("world"),
            rank,
            entry.at("split_batches"));
        ASSERT_EQ(kept(shard, samples), samples_of(of_ranks[static_cast<size_t>(rank)]))
            << samples << " samples, " << entry.dump().substr(0, 90);
        ++cases;
      }
      ++samples;
    }
  }
  EXPECT_GT(cases, 500);
}

TEST(StreamShard, CompletesTheLastBatchOfALoneRank) {
  EXPECT_THAT(kept({3, false, 1, 0, false}, 4), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(kept({3, true, 1, 0, false}, 4), ElementsAre(0, 1, 2));
}

TEST(StreamShard, RepeatsAShortFirstRound) {
  EXPECT_THAT(kept({4, false, 2, 0, false}, 3), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(kept({4, false, 2, 1, false}, 3), ElementsAre(1, 2, 0, 1));
  EXPECT_THAT(kept({4, true, 2, 1, false}, 3), IsEmpty());
}

TEST(StreamShard, GivesASplitBatchOfOneSampleToNoRank) {
  EXPECT_THAT(kept({1, false, 2, 0, true}, 3), IsEmpty());
  EXPECT_THAT(kept({1, false, 2, 1, true}, 3), IsEmpty());
}

TEST(StreamShard, SizeIsAccelerates) {
  EXPECT_EQ(StreamShard(4, false, 2, 0, false).size(10), 8);
  EXPECT_EQ(StreamShard(4, true, 2, 0, false).size(10), 4);
  EXPECT_EQ(StreamShard(4, false, 2, 0, true).size(10), 8);
  EXPECT_EQ(StreamShard(4, false, 2, 0, false).size(0), 0);
}

TEST(StreamShard, RefusesBatchesThatCannotBeSplit) {
  EXPECT_THAT(
      [] { StreamShard(3, false, 2, 0, true); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("got batch_size 3 for 2 ranks"), HasSubstr("multiple of 2"))));
  EXPECT_THAT(
      [] { StreamShard(0, false, 2, 0, false); },
      ThrowsMessage<ConfigError>(HasSubstr("batch_size is out of range")));
  EXPECT_THAT(
      [] { StreamShard(1, false, 2, 2, false); },
      ThrowsMessage<ConfigError>(HasSubstr("rank is out of range")));
}

}  // namespace
}  // namespace lockstep::data
