// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/order/sampler.h"

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

using testing::ElementsAre;

TEST(SequentialSampler, IsTheSameInEveryEpoch) {
  const SequentialSampler sampler(4);
  EXPECT_THAT(sampler.order(0), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(sampler.order(7), sampler.order(0));
  EXPECT_EQ(sampler.seed(), 0U);
}

TEST(RandomSampler, EqualsAcceleratesSeedableRandomSampler) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/sharding.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_GT(golden.at("orders").size(), 50U);
  for (const auto& entry : golden.at("orders")) {
    const RandomSampler sampler(entry.at("size"), entry.at("seed"));
    const std::vector<int64_t> order = sampler.order(entry.at("epoch"));
    if (entry.contains("order")) {
      EXPECT_EQ(order, entry.at("order").get<std::vector<int64_t>>());
    }
    const std::string text = nlohmann::json(order).dump();
    const auto hash =
        crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()));
    ASSERT_EQ(hash, entry.at("crc32").get<uint64_t>())
        << entry.at("size") << " samples, seed " << entry.at("seed") << ", epoch "
        << entry.at("epoch");
  }
}

TEST(RandomSampler, DoesNotUseTorchsGenerator) {
  at::manual_seed(3);
  const double expected = at::rand({}).item<double>();
  at::manual_seed(3);
  RandomSampler(100, 1).order(0);
  EXPECT_EQ(at::rand({}).item<double>(), expected);
}

TEST(RandomSampler, MayBeAskedByManyThreadsAtOnce) {
  const RandomSampler sampler(1000, 5);
  std::vector<std::vector<int64_t>> orders(4);
  std::vector<std::thread> threads;
  for (std::vector<int64_t>& order : orders) {
    threads.emplace_back([&] { order = sampler.order(2); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::vector<int64_t>& order : orders) {
    EXPECT_EQ(order, sampler.order(2));
  }
}

TEST(RandomSampler, RefusesANegativeSize) {
  EXPECT_THROW(RandomSampler(-1, 0), ConfigError);
  EXPECT_THROW(SequentialSampler(-1), ConfigError);
}

}  // namespace
}  // namespace lockstep::data
