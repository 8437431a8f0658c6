// SPDX-License-Identifier: Apache-2.0
// Loops whose processes read loaders differently: each is an error on all processes.
#include "lockstep/accelerator/loop/loader_facts.h"

#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/test_log.h"
#include "lockstep/data/dataset/tensor_dataset.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/order/sampler.h"

namespace lockstep::internal {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::nn::Linear;

/// Makes the loader of a rank, and reads `test`, another prepared loader.
struct Loop {
  std::function<data::Loader<data::TensorDataset>(int rank)> train = [](int /*rank*/) {
    return shuffled_numbers(24);
  };
  /// Returns whether this rank leaves the loop before this batch.
  std::function<bool(int rank, int epoch, int batch)> leaves = [](int, int, int) { return false; };
  std::function<void(Accelerator&, data::Loader<data::TensorDataset>& train)> before =
      [](Accelerator&, auto&) {};
  std::function<void(Accelerator&, data::Loader<data::TensorDataset>& test)> after_epoch =
      [](Accelerator&, auto&) {};
  bool even_batches = true;
  bool expect_equal_passes = true;
};

/// Trains for two epochs on two ranks. Returns rank 0's message.
std::string message_of(const Loop& loop) {
  std::string message;
  const AcceleratorOptions options{
      .even_batches = loop.even_batches, .expect_equal_passes = loop.expect_equal_passes};
  accelerated_ranks(2, options, [&](Accelerator& accelerator) {
    const int rank = accelerator.process_index();
    const std::string own = error_of<ConfigError>([&] {
      Linear net = one_by_one();
      auto [model, optimizer, train, test] = accelerator.prepare(
          net,
          torch::optim::SGD(net->parameters(), 1e-3),
          loop.train(rank),
          numbers(10, {.batch_size = 2}));
      loop.before(accelerator, train);
      for (int epoch = 0; epoch < 2; ++epoch) {
        int index = 0;
        for (auto& batch : train) {
          if (loop.leaves(rank, epoch, index++)) {
            break;
          }
          accelerator.backward(loss_of(net, batch.data));
          optimizer.step();
          optimizer.zero_grad();
        }
        loop.after_epoch(accelerator, test);
      }
      accelerator.end_training();
    });
    if (rank == 0) {
      message = own;
    }
  });
  return message;
}

TEST(LoaderFacts, ACorrectLoopIsNotReported) {
  Loop loop;
  loop.leaves = [](int /*rank*/, int epoch, int batch) { return epoch == 0 && batch == 3; };
  loop.after_epoch = [](Accelerator&, auto& test) {
    for ([[maybe_unused]] auto& batch : test) {
    }
  };
  EXPECT_EQ(message_of(loop), "no error");
}

TEST(LoaderFacts, LoadersOfOtherDataOrOptionsAreRefusedAtPrepare) {
  const auto loader = [](int64_t samples, data::LoaderOptions options) {
    return [samples, options](int rank) {
      return rank == 0 ? numbers(24, {.batch_size = 2}) : numbers(samples, options);
    };
  };
  const auto message = [](const auto& train) {
    Loop loop;
    loop.train = train;
    return message_of(loop);
  };
  EXPECT_THAT(
      message(loader(23, {.batch_size = 2})),
      HasSubstr("[prepare] the number of samples of loader 0 must be equal on all ranks; rank 0 "
                "has 24, rank 1 has 23; give every rank all samples"));
  EXPECT_THAT(
      message(loader(24, {.batch_size = 3})),
      HasSubstr("the batch_size of loader 0 must be equal on all ranks; rank 0 has 2, rank 1 has "
                "3"));
  EXPECT_THAT(
      message(loader(24, {.batch_size = 2, .drop_last = true})),
      HasSubstr("the drop_last of loader 0"));
  EXPECT_THAT(
      message(loader(24, {.batch_size = 2, .shuffle = true})),
      HasSubstr("the shuffle of loader 0"));
}

TEST(LoaderFacts, ALoopThatOneRankLeavesIsNamedAtTheNextBackward) {
  Loop loop;
  loop.leaves = [](int rank, int epoch, int batch) {
    return rank == 1 && epoch == 0 && batch == 3;
  };
  EXPECT_THAT(
      message_of(loop),
      AllOf(
          HasSubstr("[backward] the number of batches in the training loops over loader 0 must be "
                    "equal on all ranks; rank 0 has 0 in the last of 0 finished, rank 1 has 3 in "
                    "the last of 1 finished"),
          HasSubstr("by a value that reduce has made equal")));
}

TEST(LoaderFacts, RanksWithUnevenBatchesAreNamedAtTheEndOfThePass) {
  Loop loop;
  loop.train = [](int /*rank*/) { return shuffled_numbers(22); };  // 6 and 5 batches.
  loop.even_batches = false;
  EXPECT_THAT(
      message_of(loop),
      AllOf(
          HasSubstr("rank 0 has 0 in the last of 0 finished, rank 1 has 5 in the last of 1"),
          HasSubstr("need even_batches or join_uneven_inputs")));
}

/// An order of its own on each rank.
class OrderOfRank final : public data::Sampler {
 public:
  explicit OrderOfRank(int rank) : rank_(rank) {}
  int64_t size() const override { return 24; }
  std::vector<int64_t> order(int64_t /*epoch*/) const override {
    std::vector<int64_t> order(24);
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[0], order[static_cast<size_t>(rank_)]);
    return order;
  }

 private:
  int rank_;
};

TEST(LoaderFacts, AnOrderOfOneRankIsFoundAtTheFirstBackward) {
  Loop loop;
  loop.train = [](int rank) {
    const at::Tensor rows = at::arange(24, at::kFloat).reshape({24, 1});
    return data::Loader(
        data::TensorDataset(rows, at::arange(24)),
        {.batch_size = 2},
        std::make_shared<OrderOfRank>(rank));
  };
  EXPECT_THAT(
      message_of(loop),
      AllOf(
          HasSubstr("[backward] the order of samples of loader 0 must be equal on all ranks"),
          HasSubstr("samples would be repeated and missed")));
}

TEST(LoaderFacts, APassThatOneRankBeganBeforeTrainingIsFound) {
  Loop loop;
  loop.before = [](Accelerator& accelerator, auto& train) {
    if (accelerator.is_main_process()) {
      [[maybe_unused]] auto& batch = *train.begin();
    }
  };
  EXPECT_THAT(message_of(loop), HasSubstr("the order of samples of loader 0"));
  loop.expect_equal_passes = false;
  EXPECT_EQ(message_of(loop), "no error");
}

TEST(LoaderFacts, RanksMayAgreeOnTheLastBatchThatAllHave) {
  Loop loop;
  loop.train = [](int /*rank*/) { return shuffled_numbers(22); };  // 6 and 5 batches.
  loop.even_batches = false;
  loop.leaves = [](int /*rank*/, int /*epoch*/, int batch) { return batch == 5; };
  EXPECT_EQ(message_of(loop), "no error");
}

TEST(LoaderFacts, AnEvaluationMayBeLeftAtItsLastBatch) {
  Loop loop;
  loop.even_batches = false;
  loop.after_epoch = [](Accelerator&, auto& test) {  // 3 and 2 batches.
    int batches = 0;
    for ([[maybe_unused]] auto& batch : test) {
      if (++batches == 3) {
        break;
      }
    }
  };
  EXPECT_EQ(message_of(loop), "no error");
}

TEST(LoaderFacts, ALaterPrepareStartsWithoutFacts) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    for (int fold = 0; fold < 3; ++fold) {
      Linear net = one_by_one();
      auto [model, optimizer, train, test] = accelerator.prepare(
          net,
          torch::optim::SGD(net->parameters(), 1e-3),
          shuffled_numbers(24),
          numbers(10, {.batch_size = 2}));
      if (accelerator.is_main_process()) {
        [[maybe_unused]] auto& batch = *test.begin();
      }
      for (auto& batch : train) {
        accelerator.backward(loss_of(net, batch.data));
        optimizer.step();
        optimizer.zero_grad();
      }
      accelerator.free_memory(net, optimizer, train, test);
    }
  });
}

TEST(LoaderFacts, AnEvaluationOnOneRankIsFound) {
  for (const int epoch : {0, 1}) {
    Loop loop;
    int ended_epochs = 0;
    loop.after_epoch = [&](Accelerator& accelerator, auto& test) {
      if (accelerator.is_main_process() && ended_epochs++ == epoch) {
        for ([[maybe_unused]] auto& batch : test) {
        }
      }
    };
    EXPECT_THAT(
        message_of(loop),
        AllOf(
            HasSubstr(epoch == 0 ? "[backward] " : "[end_training] "),
            HasSubstr("the number of finished passes over loader 1 must be "
                      "equal on all ranks; rank 0 has 1, rank 1 has 0"),
            HasSubstr("loop over it on every rank")));
  }
}

TEST(LoaderFacts, OneRankMayLookAtABatchOfATestLoader) {
  Loop loop;
  loop.after_epoch = [](Accelerator& accelerator, auto& test) {
    if (accelerator.is_main_process()) {
      [[maybe_unused]] auto& batch = *test.begin();
    }
  };
  EXPECT_EQ(message_of(loop), "no error");
}

/// A stream with another number of samples on each rank.
struct StreamOfRank {
  auto stream(int64_t /*epoch*/) const {
    return [samples = samples, next = int64_t{0}]() mutable -> std::optional<int64_t> {
      return next < samples ? std::optional(next++) : std::nullopt;
    };
  }
  at::Tensor collate(std::vector<int64_t> rows) const {
    return at::tensor(rows, at::kFloat).reshape({-1, 1});
  }
  int64_t samples;
};

TEST(LoaderFacts, AStreamThatEndsEarlierOnOneRankIsNamedThere) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net = one_by_one();
    auto [model, optimizer, train] = accelerator.prepare(
        net,
        torch::optim::SGD(net->parameters(), 1e-3),
        data::Loader(
            StreamOfRank{.samples = accelerator.is_main_process() ? 24 : 12}, {.batch_size = 2}));
    EXPECT_THAT(
        error_of<ConfigError>([&, &train = train, &optimizer = optimizer] {
          for (int epoch = 0; epoch < 3; ++epoch) {
            for (auto& batch : train) {
              accelerator.backward(loss_of(net, batch));
              optimizer.step();
              optimizer.zero_grad();
            }
          }
        }),
        HasSubstr("rank 0 has 0 in the last of 0 finished, rank 1 has 3 in the last of 1"));
  });
}

TEST(LoaderFacts, DataThatRanksHaveSplitDifferentlyIsWarnedOf) {
  for (const bool differs : {false, true}) {
    const auto lines = logged_by([&] {
      accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
        const int64_t begin = differs ? accelerator.process_index() : 0;
        const at::Tensor rows = at::arange(begin, begin + 8, at::kFloat).reshape({8, 1});
        accelerator.prepare(data::Loader(data::TensorDataset(rows, at::zeros({8}))));
      });
    });
    const auto warning = Contains(HasSubstr("first or last sample of loader 0 differs"));
    EXPECT_EQ(::testing::Matches(warning)(lines), differs);
  }
}

TEST(LoaderFacts, SeveralRanksWithoutAPreparedLoaderAreWarnedOnce) {
  for (const bool expect : {true, false}) {
    for (const int size : {1, 2}) {
      const auto lines = logged_by([&] {
        accelerated_ranks(size, {.expect_prepared_loader = expect}, [&](Accelerator& accelerator) {
          Linear net = two_by_two();
          auto [model, optimizer] =
              accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
          for (int step = 0; step < 3; ++step) {
            accelerator.backward(loss_of(net, rows_of(accelerator)));
            optimizer.step();
            optimizer.zero_grad();
          }
        });
      });
      const auto warning = HasSubstr("2 processes train, and no loader was prepared");
      EXPECT_EQ(
          std::count_if(
              lines.begin(),
              lines.end(),
              [&](const std::string& line) { return ::testing::Matches(warning)(line); }),
          expect && size == 2 ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace lockstep::internal
