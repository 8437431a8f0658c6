// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/dispatcher.h"

#include <atomic>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/test_numbers.h"
#include "lockstep/data/test_streams.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Batches = std::vector<std::vector<int64_t>>;

/// Returns two passes of this rank, with the info of each batch.
template <typename D>
std::pair<Batches, std::vector<BatchInfo>> two_passes(
    const D& source, const LoaderOptions& options, const ShardSpec& spec, Group group) {
  Loader loader(source, options);
  loader.shard(spec, std::move(group));
  const auto recorder = std::make_shared<InfoRecorder>();
  loader.set_observer(recorder);
  Batches batches = batches_of(loader);
  for (auto& batch : loader) {
    batches.push_back(std::move(batch));
  }
  EXPECT_EQ(loader.epoch(), 2);
  return {batches, recorder->infos};
}

template <typename D>
void expect_the_same_when_dispatched(int world, int flags, int64_t samples) {
  const LoaderOptions options{.batch_size = 4, .drop_last = (flags & 1) != 0, .workers = flags / 8};
  ranks(world, [&](Group group) {
    ShardSpec spec{
        .rank = group.rank(),
        .world = world,
        .even_batches = (flags & 2) != 0,
        .split_batches = (flags & 4) != 0};
    const auto [expected, expected_infos] = two_passes(D(samples), options, spec, group);
    spec.dispatch_batches = true;
    const auto [batches, infos] = two_passes(D(samples), options, spec, group);
    EXPECT_EQ(batches, expected) << world << " ranks, flags " << flags << ", " << samples;
    ASSERT_EQ(infos.size(), expected_infos.size());
    for (size_t i = 0; i < infos.size(); ++i) {
      EXPECT_EQ(infos[i].is_last, expected_infos[i].is_last);
      EXPECT_EQ(infos[i].rows_per_rank, expected_infos[i].rows_per_rank);
      EXPECT_EQ(infos[i].valid_rows, expected_infos[i].valid_rows);
      EXPECT_EQ(infos[i].is_last_somewhere, expected_infos[i].is_last_somewhere);
    }
  });
}

TEST(Dispatcher, GivesEveryRankTheBatchesThatItWouldHaveRead) {
  set_log_sink([](const std::string& /*a pass without batches*/) {});
  for (const int world : {1, 2, 4}) {
    for (int flags = 0; flags < 16; ++flags) {
      for (const int64_t samples : {1, 3, 5, 8, 15, 16, 17, 30}) {
        expect_the_same_when_dispatched<Numbers>(world, flags, samples);
        expect_the_same_when_dispatched<Counting>(world, flags, samples);
      }
    }
  }
  set_log_sink({});
}

TEST(Dispatcher, OnlyRankZeroReads) {
  ranks(3, [](Group group) {
    const Numbers numbers(20);
    Loader loader(numbers, {.batch_size = 2, .workers = 2});
    loader.shard({.rank = group.rank(), .world = 3, .dispatch_batches = true}, group);
    EXPECT_EQ(batches_of(loader).size(), 4U);
    EXPECT_EQ(*numbers.batches_read, group.rank() == 0 ? 12 : 0);
  });
}

/// Full steps are Accelerate's. Its last step spreads what is left evenly, and fills up with at
/// most one sample a rank; ours fills every rank's batch, as it does without dispatching, and says
/// which rows are real. The real samples are the same.
TEST(Dispatcher, EqualsTheStepsOfAcceleratesDispatcher) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/iterable.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  int full_steps = 0;
  for (const nlohmann::json& entry : golden.at("dispatch")) {
    const int world = entry.at("world");
    const int64_t batch_size = entry.at("batch_size");
    const ShardSpec spec{.world = world, .split_batches = entry.at("split_batches")};
    int64_t samples = entry.at("first");
    for (const nlohmann::json& expected : entry.at("cases")) {
      const ShardLayout layout(samples, batch_size, entry.at("drop_last"), spec);
      if (expected.is_null()) {  // Accelerate raises where there is no step at all.
        EXPECT_EQ(layout.size(0), 0);
        ++samples;
        continue;
      }
      std::multiset<int64_t> all_real;
      for (int64_t step = 0; step < layout.size(0); ++step) {
        std::set<int64_t> real;
        std::set<int64_t> theirs;
        for (int rank = 0; rank < world; ++rank) {
          ASSERT_EQ(std::ssize(expected[rank]), layout.size(rank)) << samples << entry;
          const std::vector<int64_t> batch = expected[rank][step];
          theirs.insert(batch.begin(), batch.end());
          std::vector<int64_t> ours;
          for (int64_t row = 0; row < layout.rows(step, rank); ++row) {
            ours.push_back(layout.position(step, row, rank));
          }
          const int64_t valid = layout.valid_rows(step, rank);
          real.insert(ours.begin(), ours.begin() + valid);
          all_real.insert(ours.begin(), ours.begin() + valid);
          if ((step + 1) * layout.global_batch_rows() <= samples) {
            EXPECT_EQ(ours, batch) << samples << " samples, step " << step << entry;
            ++full_steps;
          }
        }
        EXPECT_THAT(theirs, testing::IsSupersetOf(real)) << samples << " samples, " << entry;
      }
      const int64_t rest = entry.at("drop_last") ? samples % layout.global_batch_rows() : 0;
      std::vector<int64_t> each_once(static_cast<size_t>(samples - rest));
      std::iota(each_once.begin(), each_once.end(), 0);
      EXPECT_THAT(all_real, testing::ElementsAreArray(each_once)) << samples << entry;
      ++samples;
    }
  }
  EXPECT_GT(full_steps, 1000);
}

/// Batches of another shape for every rank and step, in containers.
struct Ragged {
  struct Batch {
    at::Tensor tokens;
    std::map<std::string, std::vector<at::Tensor>> extra;
    std::optional<at::Tensor> maybe;
    std::vector<std::string> names;
    double weight = 0;
    LOCKSTEP_FIELDS(tokens, extra, maybe, names, weight)
  };
  int64_t size() const { return 12; }
  Batch get_batch(std::span<const int64_t> indices) const {
    const int64_t i = indices.front();
    Batch batch;
    batch.tokens = at::arange(i * 3, at::kLong).view({3, i});
    batch.extra["scores"] = std::vector<at::Tensor>(i % 3, at::full({i}, i, at::kHalf));
    if (i % 2 == 0) {
      batch.maybe = at::full({}, i, at::kBool);
    }
    batch.names = {"sample " + std::to_string(i), ""};
    batch.weight = 0.25 * static_cast<double>(i);
    return batch;
  }
};

void expect_equal(const Ragged::Batch& got, const Ragged::Batch& expected) {
  EXPECT_TRUE(at::equal(got.tokens, expected.tokens));
  ASSERT_EQ(got.extra.size(), 1U);
  const auto& scores = got.extra.at("scores");
  ASSERT_EQ(scores.size(), expected.extra.at("scores").size());
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_TRUE(at::equal(scores[i], expected.extra.at("scores")[i]));
  }
  ASSERT_EQ(got.maybe.has_value(), expected.maybe.has_value());
  if (got.maybe) {
    EXPECT_TRUE(at::equal(*got.maybe, *expected.maybe));
  }
  EXPECT_EQ(got.names, expected.names);
  EXPECT_EQ(got.weight, expected.weight);
}

void dispatch_ragged(Group group) {
  Loader loader(Ragged(), {.batch_size = 1, .workers = 2});
  loader.shard({.rank = group.rank(), .world = group.size(), .dispatch_batches = true}, group);
  int64_t step = 0;
  for (const auto& batch : loader) {
    expect_equal(batch, Ragged().get_batch(std::vector{step * group.size() + group.rank()}));
    // Meanwhile the training uses its own group.
    const at::Tensor sum = group.all_reduce(at::full({1000}, step, at::kLong)).wait();
    EXPECT_EQ(sum[999].item<int64_t>(), step * group.size());
    ++step;
  }
  EXPECT_EQ(step * group.size(), 12);
}

TEST(Dispatcher, SendsNestedBatchesOfEveryShape) {
  ranks(3, dispatch_ragged);
}

TEST(Dispatcher, WorksOverRealSockets) {
  gloo_ranks(3, dispatch_ragged);
}

TEST(Dispatcher, SendsThisRanksBatchesInOrderOffTheLoopsThread) {
  ranks(2, [](Group group) {
    const ShardLayout layout(20, 2, false, {.rank = group.rank(), .world = 2});
    std::unique_ptr<BatchSource<Numbers::Batch>> source;
    if (group.rank() == 0) {
      source = std::make_unique<MapBatchSource<Numbers::Batch>>(
          [](std::span<const int64_t> indices) { return Numbers(20).get_batch(indices); },
          std::make_shared<ShardPlan>(SequentialSampler(20).order(0), layout),
          0,
          RankRange{.first = 0, .count = 2},
          LoaderOptions(),
          RandomKey());
    }
    std::atomic<int> sent{0};
    Dispatcher<Numbers::Batch> dispatcher(
        group,
        std::move(source),
        layout,
        Cursor{},
        [&, loop = std::this_thread::get_id()](Numbers::Batch batch) {
          EXPECT_NE(std::this_thread::get_id(), loop);
          ++sent;
          batch.push_back(-1);
          return PendingBatch<Numbers::Batch>{batch};
        });
    int64_t first = 2 * group.rank();
    while (const auto step = dispatcher.next()) {
      EXPECT_THAT(step->batches.front()->batch, testing::ElementsAre(first, first + 1, -1));
      first += 4;
    }
    EXPECT_EQ(sent, 5);
  });
}

TEST(Dispatcher, SkipsAsFarAsTheRankWithTheMostBatches) {
  ranks(2, [](Group group) {
    Loader loader(Numbers(10), {.batch_size = 2});
    loader.shard(
        {.rank = group.rank(), .world = 2, .even_batches = false, .dispatch_batches = true}, group);
    auto rest = skip_first_batches(loader, 3);
    EXPECT_EQ(batches_of(rest).size(), 0U);
    EXPECT_EQ(batches_of(rest).size(), group.rank() == 0 ? 3U : 2U);
    EXPECT_EQ(loader.cursor(), (Cursor{.epoch = 2}));
  });
}

TEST(Dispatcher, HandsOutBatchesOnTheLoadersDevice) {
  ranks(2, [](Group group) {
    Loader loader(
        TensorDataset(at::arange(8), at::arange(8)), {.batch_size = 2, .device = at::kMeta});
    loader.shard({.rank = group.rank(), .world = 2, .dispatch_batches = true}, group);
    for (const auto& batch : loader) {
      EXPECT_TRUE(batch.data.is_meta() && batch.target.is_meta());
    }
  });
}

/// Batches that cannot be sent.
struct UnsendableBatches {
  struct Batch {
    std::shared_ptr<int> anything;
  };
  int64_t size() const { return 4; }
  Batch get_batch(std::span<const int64_t> /*indices*/) const { return {}; }
};

TEST(Dispatcher, RefusesUnsupportedBatchesAndCalls) {
  ranks(2, [](Group group) {
    const ShardSpec spec{.rank = group.rank(), .world = 2, .dispatch_batches = true};
    Loader opaque(UnsendableBatches(), {});
    EXPECT_THAT(
        [&] { opaque.shard(spec, group); },
        ThrowsMessage<ConfigError>(HasSubstr("cannot send batches of this type")));
    Loader loader(Numbers(4), {});
    EXPECT_THAT(
        [&] { loader.shard(spec); }, ThrowsMessage<ConfigError>(HasSubstr("shard(spec, group)")));
    loader.shard(spec, group);
    loader.shard(spec, group);
    loader.shard(spec);
    EXPECT_EQ(batches_of(loader).size(), 2U);
  });
}

}  // namespace
}  // namespace lockstep::data
