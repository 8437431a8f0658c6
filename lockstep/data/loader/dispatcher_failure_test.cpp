// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/test_numbers.h"
#include "lockstep/data/test_streams.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Leaves the loop at the third batch in every epoch, and by an exception in the last.
void leave_early(Group group) {
  Loader loader(Numbers(64), {.batch_size = 2, .shuffle = true});
  const ShardSpec spec{.rank = group.rank(), .world = group.size(), .dispatch_batches = true};
  loader.shard(spec, group);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const ShardPlan plan(
        RandomSampler(64, 0).order(epoch), 2, false, {.rank = group.rank(), .world = group.size()});
    const auto loop = [&] {
      for (const auto& batch : loader) {
        EXPECT_EQ(batch, plan.indices(loader.cursor().batches - 1));
        if (loader.cursor().batches == 3) {
          if (epoch == 2) {
            throw std::domain_error("from the loop");
          }
          break;
        }
      }
    };
    if (epoch == 2) {
      EXPECT_THROW(loop(), std::domain_error);
    } else {
      loop();
    }
  }
  // A checkpoint of here, resumed.
  const Cursor left = loader.cursor();
  EXPECT_EQ(left, (Cursor{.epoch = 2, .batches = 3}));
  Loader resumed(Numbers(64), {.batch_size = 2, .shuffle = true});
  resumed.shard(spec, group);
  resumed.load_cursor(left);
  EXPECT_EQ(std::ssize(batches_of(resumed)), resumed.size() - 3);
  auto rest = skip_first_batches(resumed, 2);
  EXPECT_EQ(std::ssize(batches_of(rest)), resumed.size() - 2);
}

TEST(Dispatcher, ALoopThatEndsEarlyOnAllRanksLeavesNothingBehind) {
  ranks(3, leave_early);
  gloo_ranks(2, leave_early);
}

template <typename D>
void expect_failure_everywhere(int workers) {
  ranks(3, [&](Group group) {
    D source(60);
    source.broken = 31;
    Loader loader(source, {.batch_size = 2, .workers = workers});
    loader.shard({.rank = group.rank(), .world = 3, .dispatch_batches = true}, group);
    const auto loop = [&] { batches_of(loader); };
    if (group.rank() == 0) {
      EXPECT_THROW(loop(), std::domain_error);
    } else {
      EXPECT_THAT(
          loop, ThrowsMessage<Error>(AllOf(HasSubstr("rank 0"), HasSubstr("broken sample"))));
    }
    // No rank waits, and the group still works.
    EXPECT_EQ(group.all_reduce(at::full({1}, 1, at::kLong)).wait().template item<int64_t>(), 3);
  });
}

TEST(Dispatcher, AnExceptionOfRankZerosDatasetReachesEveryRank) {
  for (const int workers : {0, 1}) {
    expect_failure_everywhere<Numbers>(workers);
    expect_failure_everywhere<Counting>(workers);
  }
}

TEST(Dispatcher, ReportsARankThatAloneEndedItsLoop) {
  std::atomic<int> reported{0};
  EXPECT_THROW(
      ranks(
          2,
          [&](Group group) {
            Loader loader(Numbers(40), {.batch_size = 2});
            loader.shard({.rank = group.rank(), .world = 2, .dispatch_batches = true}, group);
            try {
              for ([[maybe_unused]] auto& batch : loader) {
                if (group.rank() == 1) {
                  break;
                }
              }
              batches_of(loader);
            } catch (const Error& error) {
              if (group.rank() == 1) {
                EXPECT_THAT(
                    error.what(),
                    AllOf(
                        HasSubstr("at different positions: rank 0 at batch 2 of epoch 0"),
                        HasSubstr("this rank at batch 0 of epoch 1")));
                ++reported;
              }
              throw;
            }
          }),
      Error);
  EXPECT_EQ(reported, 1);
}

/// One rank leaves its loop a batch after the other. The other one begins its next pass only after
/// the first has logged that it waits.
std::vector<std::string> said_by_a_rank_that_leaves_late(int late) {
  std::vector<std::string> lines;
  std::promise<void> said;
  set_log_sink([&](const std::string& line) {
    lines.push_back(line);
    if (line.find("all ranks must leave") != std::string::npos) {
      said.set_value();
    }
  });
  ranks(2, [&](Group group) {
    Loader loader(Numbers(40), {.batch_size = 2});
    loader.shard({.rank = group.rank(), .world = 2, .dispatch_batches = true}, group);
    for ([[maybe_unused]] auto& batch : loader) {
      if (loader.cursor().batches == (group.rank() == late ? 4 : 3)) {
        break;
      }
    }
    if (group.rank() != late) {
      EXPECT_EQ(said.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
    }
    if (group.rank() == 0 && late == 1) {
      for ([[maybe_unused]] auto& batch : loader) {
        break;
      }
    } else if (group.rank() == 1) {
      EXPECT_THROW(batches_of(loader), Error);
    }
  });
  set_log_sink({});
  return lines;
}

TEST(Dispatcher, ARankThatLeavesItsLoopLaterSaysWhichRanksItAwaits) {
  EXPECT_THAT(
      said_by_a_rank_that_leaves_late(1),
      ElementsAre(
          AllOf(
              HasSubstr("[rank 1] warning"),
              HasSubstr("waits for rank 0 at batch 4 of epoch 0; all ranks must leave the loop")),
          AllOf(HasSubstr("[rank 1] error"), HasSubstr("rank 0 at batch 0 of epoch 1"))));
  EXPECT_THAT(
      said_by_a_rank_that_leaves_late(0),
      ElementsAre(AllOf(
          HasSubstr("[rank 0] warning"),
          HasSubstr("waits for the other ranks at batch 4 of epoch 0"))));
}

TEST(Dispatcher, AFailedBatchThrowsAgainInsteadOfEndingThePass) {
  ranks(2, [](Group group) {
    Numbers source(40);
    source.broken = 9;
    Loader loader(source, {.batch_size = 2});
    loader.shard({.rank = group.rank(), .world = 2, .dispatch_batches = true}, group);
    {
      auto iterator = loader.begin();
      ++iterator;
      for (int i = 0; i < 3; ++i) {
        EXPECT_THAT([&] { ++iterator; }, ThrowsMessage<std::exception>(HasSubstr("broken sample")));
        EXPECT_FALSE(iterator == loader.end());
      }
      EXPECT_EQ(loader.cursor(), (Cursor{.batches = 2}));
    }
    EXPECT_EQ(loader.cursor(), (Cursor{.batches = 2}));
  });
}

/// Its order of epoch 1 is another one.
class Straying final : public Sampler {
 public:
  explicit Straying(std::vector<int64_t> second) : second_(std::move(second)) {}
  int64_t size() const override { return 8; }
  std::vector<int64_t> order(int64_t epoch) const override {
    return epoch == 1 ? second_ : std::vector<int64_t>(8, 0);
  }

 private:
  std::vector<int64_t> second_;
};

TEST(Dispatcher, ARefusedPassIsRefusedOnEveryRank) {
  const std::vector<int64_t> outside_the_dataset(8, 100);
  const std::vector<int64_t> too_short(7, 0);
  for (const std::vector<int64_t>& order : {outside_the_dataset, too_short}) {
    ranks(2, [&](Group group) {
      Loader loader(Numbers(8), {.batch_size = 2}, std::make_shared<Straying>(order));
      loader.shard({.rank = group.rank(), .world = 2, .dispatch_batches = true}, group);
      EXPECT_EQ(batches_of(loader).size(), 2U);
      EXPECT_THROW(batches_of(loader), ConfigError);
    });
  }
}

}  // namespace
}  // namespace lockstep::data
