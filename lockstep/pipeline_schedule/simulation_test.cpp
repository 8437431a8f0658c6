// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline_schedule/simulation.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_errors.h"
#include "lockstep/pipeline_schedule/test_shapes.h"

namespace lockstep::pipeline_schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kTolerance = 1e-9;

/// Times of equal chunks, for which the formulas hold: W at most F and B.
constexpr std::array kEqualChunks = {
    ChunkTimes{.forward = 1, .backward_input = 1, .backward_weight = 1},
    ChunkTimes{.forward = 3, .backward_input = 4, .backward_weight = 2},
    ChunkTimes{.forward = 2, .backward_input = 1.5, .backward_weight = 0.5}};

/// When each computation ended: [forward, backward for inputs, backward for weights] by chunk and
/// micro-batch.
class Ends {
 public:
  explicit Ends(const Timeline& timeline) {
    for (const auto& list : timeline.ranks) {
      for (const auto& [action, start, end] : list) {
        const ActionKind kind =
            action.kind == ActionKind::kBackward ? ActionKind::kBackwardInput : action.kind;
        ends_[{kind, action.chunk, action.micro_batch}] = end;
      }
    }
  }
  /// Returns infinity for what has never run.
  double of(ActionKind kind, int chunk, int micro_batch) const {
    const auto found = ends_.find({kind, chunk, micro_batch});
    return found == ends_.end() ? std::numeric_limits<double>::infinity() : found->second;
  }

 private:
  std::map<std::tuple<ActionKind, int, int>, double> ends_;
};

TEST(PipelineSimulation, EveryActionBeginsAsSoonAsItsInputsAndItsRankPermit) {
  for (const ScheduleShape& shape : valid_shapes()) {
    const int chunks = shape.ranks * shape.chunks_per_rank;
    SimulationTimes times{.chunks = {}, .message = 0.25};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      times.chunks.push_back(
          {.forward = 1 + chunk % 3 * 0.5,
           .backward_input = 2 - chunk % 2 * 0.75,
           .backward_weight = 1 + chunk % 5 * 0.25});
    }
    const double message = shape.ranks > 1 ? times.message : 0;
    const Timeline timeline = simulate(compute_actions(shape), times);
    const Ends ends(timeline);
    double total = 0;
    for (const auto& list : timeline.ranks) {
      double free = 0;
      for (const auto& [action, start, end] : list) {
        const auto [kind, chunk, micro_batch] = action;
        const ChunkTimes& own = times.chunks[static_cast<size_t>(chunk)];
        double ready = free;
        double time = own.forward;
        if (kind == ActionKind::kForward && chunk > 0) {
          ready = std::max(ready, ends.of(ActionKind::kForward, chunk - 1, micro_batch) + message);
        } else if (kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput) {
          ready = std::max(ready, ends.of(ActionKind::kForward, chunk, micro_batch));
          if (chunk + 1 < chunks) {
            ready = std::max(
                ready, ends.of(ActionKind::kBackwardInput, chunk + 1, micro_batch) + message);
          }
          time = own.backward_input + (kind == ActionKind::kBackward ? own.backward_weight : 0);
        } else if (kind == ActionKind::kBackwardWeight) {
          ready = std::max(ready, ends.of(ActionKind::kBackwardInput, chunk, micro_batch));
          time = own.backward_weight;
        }
        ASSERT_EQ(start, ready) << describe(shape) << ": " << describe(action);
        ASSERT_EQ(end, start + time) << describe(shape) << ": " << describe(action);
        free = end;
        total = std::max(total, end);
      }
    }
    ASSERT_EQ(timeline.total, total);
  }
}

/// Returns the idle time of one rank by the formula of the schedule.
double idle_by_formula(const ScheduleShape& shape, const ChunkTimes& times) {
  const double backward = times.backward_input + times.backward_weight;
  const int hops = shape.ranks - 1;
  if (shape.kind == ScheduleKind::kZeroBubble) {
    return hops * (times.forward + times.backward_input - times.backward_weight);
  }
  // Fewer micro-batches than ranks do not fill the way from the last rank back to the first.
  const int unfilled = (shape.chunks_per_rank - 1) * std::max(0, shape.ranks - shape.micro_batches);
  return (hops + unfilled) * (times.forward + backward);
}

TEST(PipelineSimulation, TheBubbleIsThatOfTheFormula) {
  for (const ScheduleShape& shape : valid_shapes()) {
    if (shape.kind == ScheduleKind::kZeroBubble && shape.micro_batches < shape.ranks) {
      continue;
    }
    for (const ChunkTimes& times : kEqualChunks) {
      const Timeline timeline = simulate(compute_actions(shape), {.chunks = {times}, .message = 0});
      const double work = shape.chunks_per_rank * shape.micro_batches *
                          (times.forward + times.backward_input + times.backward_weight);
      const double idle = idle_by_formula(shape, times);
      ASSERT_NEAR(timeline.total, work + idle, kTolerance) << describe(shape);
      ASSERT_NEAR(timeline.work, shape.ranks * work, kTolerance) << describe(shape);
      ASSERT_NEAR(timeline.bubble(), idle / (work + idle), kTolerance) << describe(shape);
      ASSERT_NEAR(timeline.bubble_per_work(), idle / work, kTolerance) << describe(shape);
    }
  }
}

TEST(PipelineSimulation, TheBubbleOf1F1BIsRanksMinus1PerMicroBatch) {
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B}) {
    const Timeline timeline = simulate(
        compute_actions({.kind = kind, .ranks = 4, .chunks_per_rank = 1, .micro_batches = 8}));
    EXPECT_NEAR(timeline.bubble_per_work(), 3.0 / 8, kTolerance);
    EXPECT_NEAR(timeline.bubble(), 3.0 / 11, kTolerance);
  }
}

TEST(PipelineSimulation, ChunksDivideTheBubbleAndZeroBubbleLeavesAThird) {
  const auto bubble = [](ScheduleKind kind, int chunks) {
    return simulate(compute_actions(
                        {.kind = kind, .ranks = 4, .chunks_per_rank = chunks, .micro_batches = 8}))
        .bubble_per_work();
  };
  EXPECT_NEAR(bubble(ScheduleKind::kInterleaved, 2), 3.0 / 16, kTolerance);
  EXPECT_NEAR(bubble(ScheduleKind::kInterleaved, 3), 3.0 / 24, kTolerance);
  EXPECT_NEAR(bubble(ScheduleKind::kZeroBubble, 1), 3.0 / 8 / 3, kTolerance);
  EXPECT_NEAR(bubble(ScheduleKind::kZeroBubble, 2), 3.0 / 16 / 3, kTolerance);
}

TEST(PipelineSimulation, ZeroBubbleIsNeverSlowerThan1F1B) {
  for (ScheduleShape shape : valid_shapes(ScheduleKind::kZeroBubble)) {
    const double total = simulate(compute_actions(shape)).total;
    shape.kind = shape.chunks_per_rank == 1 ? ScheduleKind::k1F1B : ScheduleKind::kInterleaved;
    EXPECT_LE(total, simulate(compute_actions(shape)).total) << describe(shape);
  }
}

TEST(PipelineSimulation, TheActivationsOfEachRankAreThoseOfTheFormula) {
  for (const ScheduleShape& shape : valid_shapes()) {
    const int rounds = std::max(1, shape.micro_batches / shape.ranks);
    const int earlier_chunks = (shape.chunks_per_rank - 1) * (shape.micro_batches / rounds);
    const int all = shape.chunks_per_rank * shape.micro_batches;
    std::vector<int> expected;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const int behind = shape.ranks - rank;  // This rank, and those behind it.
      int most = all;
      if (shape.kind == ScheduleKind::k1F1B) {
        most = behind;
      } else if (shape.kind == ScheduleKind::kInterleaved) {
        most = earlier_chunks + 2 * behind - 1;
      } else if (shape.kind == ScheduleKind::kZeroBubble) {
        most = earlier_chunks + shape.ranks;
      }
      expected.push_back(std::min(all, most));
    }
    ASSERT_EQ(simulate(compute_actions(shape)).peak_activations, expected) << describe(shape);
  }
}

TEST(PipelineSimulation, MessagesDelayTheNextRank) {
  const ActionLists lists = compute_actions(
      {.kind = ScheduleKind::k1F1B, .ranks = 2, .chunks_per_rank = 1, .micro_batches = 1});
  // Forwards at 0 and 1.5, backwards (2 units) at 2.5 and 5.
  const Timeline timeline = simulate(lists, {.chunks = {{}}, .message = 0.5});
  EXPECT_EQ(timeline.ranks[1][0].start, 1.5);
  EXPECT_EQ(timeline.ranks[0][1].start, 5);
  EXPECT_EQ(timeline.total, 7);
}

TEST(PipelineSimulation, ASlowChunkSetsThePace) {
  const ActionLists lists = compute_actions(
      {.kind = ScheduleKind::k1F1B, .ranks = 2, .chunks_per_rank = 1, .micro_batches = 10});
  const ChunkTimes slow{.forward = 2, .backward_input = 2, .backward_weight = 2};
  // The second rank works 10 x 6 units; before and after it the first has 1 and 2.
  EXPECT_EQ(simulate(lists, {.chunks = {{}, slow}, .message = 0}).total, 63);
}

TEST(PipelineSimulation, NamesTheRanksThatWaitForever) {
  ActionLists lists = compute_actions(
      {.kind = ScheduleKind::k1F1B, .ranks = 2, .chunks_per_rank = 1, .micro_batches = 2});
  std::swap(lists[1][0], lists[1][1]);  // The backward of micro-batch 0 before its forward.
  EXPECT_THAT(
      error_of([&] { simulate(lists); }),
      HasSubstr(
          "ranks wait forever: rank 0 before backward of chunk 0, micro-batch 0, rank 1 before "
          "backward of chunk 1, micro-batch 0; expected each action behind those it needs"));
}

TEST(PipelineSimulation, RefusesWrongTimesAndRanks) {
  const ActionLists lists = compute_actions(
      {.kind = ScheduleKind::k1F1B, .ranks = 3, .chunks_per_rank = 1, .micro_batches = 2});
  const auto error = [&](const SimulationTimes& times) {
    return error_of([&] { simulate(lists, times); });
  };
  EXPECT_THAT(
      error({.chunks = {{}, {}}, .message = 0}),
      HasSubstr("got times of 2 chunks; expected one for all 3 chunks, or one for each"));
  EXPECT_THAT(
      error({.chunks = {{.forward = -1}}, .message = 0}),
      HasSubstr("got a time that is negative or not finite"));
  EXPECT_THAT(
      error({.chunks = {{}}, .message = std::numeric_limits<double>::quiet_NaN()}),
      HasSubstr("got a time that is negative or not finite"));
  ActionLists other = lists;
  std::swap(other[0], other[1]);
  EXPECT_THAT(
      error_of([&] { simulate(other); }),
      HasSubstr(
          "rank 0 of 3 has the action forward of chunk 1, micro-batch 0; expected chunks 0, 3 and "
          "so on"));
}

TEST(PipelineSimulation, AnEmptyScheduleTakesNoTime) {
  const Timeline timeline = simulate({{}, {}});
  EXPECT_EQ(timeline.total, 0);
  EXPECT_EQ(timeline.bubble(), 0);
  EXPECT_EQ(timeline.bubble_per_work(), 0);
  EXPECT_THAT(timeline.peak_activations, ElementsAre(0, 0));
  EXPECT_EQ(simulate({}).total, 0);
}

}  // namespace
}  // namespace lockstep::pipeline_schedule
