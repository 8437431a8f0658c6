// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/epoch_counter.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/log.h"

namespace lockstep::internal {
namespace {

/// A program that trains in `train`, and its counter.
struct Program {
  EpochCounter::Work work{.positions = {{}}};
  std::shared_ptr<EpochCounter> counter = std::make_shared<EpochCounter>([this] { return work; });

  std::vector<int64_t> epochs(int64_t count) {
    std::vector<int64_t> seen;
    for (const int64_t epoch : counter->range(count)) {
      seen.push_back(epoch);
      train();
    }
    return seen;
  }
  void train() {
    ++work.backward_passes;
    ++work.positions[0].epoch;
  }
};

using Epochs = std::vector<int64_t>;

TEST(EpochCounter, EachRangeCountsItsOwnIterations) {
  Program program;
  EXPECT_EQ(program.epochs(2), (Epochs{0, 1}));
  EXPECT_EQ(program.epochs(3), (Epochs{0, 1, 2}));
  program.work.positions[0].epoch += 5;  // Passes outside of any range.
  EXPECT_EQ(program.epochs(1), (Epochs{0}));
}

TEST(EpochCounter, AResumeInTheSecondRangeSkipsTheFirst) {
  Program program;
  program.epochs(2);
  EpochCounter::Place saved;
  for (const int64_t epoch : program.counter->range(3)) {
    program.train();
    if (epoch == 1) {
      saved = program.counter->place();
      break;
    }
  }
  Program resumed;
  resumed.counter->resume(saved);
  EXPECT_EQ(resumed.epochs(2), Epochs());
  EXPECT_EQ(resumed.epochs(3), Epochs{2});
  EXPECT_EQ(resumed.epochs(2), (Epochs{0, 1}));
}

TEST(EpochCounter, AnIterationWithinAPassIsNotDone) {
  Program program;
  for ([[maybe_unused]] const int64_t epoch : program.counter->range(2)) {
    EXPECT_EQ(program.counter->place().back().done, 0) << "not trained";
    ++program.work.backward_passes;
    program.work.positions[0].batches = 3;
    EXPECT_EQ(program.counter->place().back().done, 0) << "within the pass";
    program.work.positions[0] = {.epoch = 1};
    EXPECT_EQ(program.counter->place().back().done, 1) << "after the pass";
    break;
  }
  EXPECT_EQ(program.counter->place(), (EpochCounter::Place{{1, 1}}));
}

TEST(EpochCounter, APositionThatTheIterationDidNotReachIsIgnored) {
  Program program;
  program.work.positions[0].batches = 3;  // An earlier loop left it there.
  for ([[maybe_unused]] const int64_t epoch : program.counter->range(1)) {
    ++program.work.updates;
    EXPECT_EQ(program.counter->place().back().done, 1);
  }
}

TEST(EpochCounter, RangesWithinARangeBeginAgainInItsNextIteration) {
  Program program;
  EpochCounter::Place saved;
  const auto run = [&](Program& of, int64_t save_at) {
    std::vector<Epochs> seen;
    for (const int64_t fold : of.counter->range(3)) {
      for (const int64_t epoch : of.counter->range(2)) {
        seen.push_back({fold, epoch});
        of.train();
        if (10 * fold + epoch == save_at) {
          saved = of.counter->place();
        }
      }
    }
    return seen;
  };
  EXPECT_EQ(run(program, 10).size(), 6U);
  Program resumed;
  resumed.counter->resume(saved);
  EXPECT_EQ(run(resumed, -1), (std::vector<Epochs>{{1, 1}, {2, 0}, {2, 1}}));
}

TEST(EpochCounter, AFinishedRangeIsEmptyAfterAResumeAndSaysSo) {
  Program program;
  program.epochs(2);
  Program resumed;
  resumed.counter->resume(program.counter->place());
  std::string lines;
  set_log_sink([&](const std::string& line) { lines += line; });
  EXPECT_EQ(resumed.epochs(2), Epochs());
  set_log_sink(nullptr);
  EXPECT_THAT(
      lines,
      ::testing::HasSubstr("has done all 2 epochs of this loop, so nothing is left to do in it"));
  Program longer;
  longer.counter->resume(program.counter->place());
  EXPECT_EQ(longer.epochs(4), (Epochs{2, 3}));
}

}  // namespace
}  // namespace lockstep::internal
