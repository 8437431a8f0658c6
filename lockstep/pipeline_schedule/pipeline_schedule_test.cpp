// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline_schedule/pipeline_schedule.h"

#include <map>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_errors.h"
#include "lockstep/pipeline_schedule/test_shapes.h"

namespace lockstep::pipeline_schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Checks that the lists have each forward and backward once, on the right rank, in an order that
/// the rank can execute. Returns the first fault, or "". Does not check waiting between ranks.
std::string fault_of(const ScheduleShape& shape, const ActionLists& lists) {
  enum Progress { kNothing, kForwardDone, kInputDone, kAllDone };
  if (lists.size() != static_cast<size_t>(shape.ranks)) {
    return "wrong number of ranks";
  }
  const std::map<ActionKind, std::pair<Progress, Progress>> steps = {
      {ActionKind::kForward, {kNothing, kForwardDone}},
      {ActionKind::kBackward, {kForwardDone, kAllDone}},
      {ActionKind::kBackwardInput, {kForwardDone, kInputDone}},
      {ActionKind::kBackwardWeight, {kInputDone, kAllDone}}};
  std::map<std::pair<int, int>, Progress> progress;  // Of [chunk, micro-batch].
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    for (const Action& action : lists[rank]) {
      if (action.chunk % shape.ranks != static_cast<int>(rank)) {
        return "wrong rank: " + describe(action);
      }
      if (action.chunk >= shape.ranks * shape.chunks_per_rank || action.chunk < 0 ||
          action.micro_batch >= shape.micro_batches || action.micro_batch < 0) {
        return "unknown: " + describe(action);
      }
      Progress& at = progress[{action.chunk, action.micro_batch}];
      const auto [before, after] = steps.at(action.kind);
      if (at != before) {
        return "out of order: " + describe(action);
      }
      at = after;
    }
  }
  const int forwards = shape.ranks * shape.chunks_per_rank * shape.micro_batches;
  if (static_cast<int>(progress.size()) != forwards) {
    return "missing";
  }
  for (const auto& [key, at] : progress) {
    if (at != kAllDone) {
      return "incomplete";
    }
  }
  return "";
}

TEST(PipelineSchedule, EveryMicroBatchRunsOnceThroughEveryChunk) {
  for (const ScheduleShape& shape : valid_shapes()) {
    ASSERT_EQ(fault_of(shape, compute_actions(shape)), "") << describe(shape);
  }
}

TEST(PipelineSchedule, TheCheckOfTheseTestsFindsFaults) {
  const ScheduleShape shape{
      .kind = ScheduleKind::kZeroBubble, .ranks = 3, .chunks_per_rank = 1, .micro_batches = 4};
  const ActionLists good = compute_actions(shape);
  ActionLists swapped = good;
  std::swap(swapped[2][0], swapped[2][1]);  // The first forward and its backward.
  EXPECT_THAT(fault_of(shape, swapped), HasSubstr("out of order: backward for the inputs"));
  ActionLists twice = good;
  twice[1][1] = twice[1][0];
  EXPECT_THAT(fault_of(shape, twice), HasSubstr("out of order: forward of chunk 1"));
  ActionLists shorter = good;
  shorter[1].pop_back();
  EXPECT_EQ(fault_of(shape, shorter), "incomplete");
  ActionLists other = good;
  std::swap(other[0], other[1]);
  EXPECT_THAT(fault_of(shape, other), HasSubstr("wrong rank"));
}

TEST(PipelineSchedule, OneForwardOneBackwardAlternatesBehindTheWarmUp) {
  using enum ActionKind;
  const ActionLists lists = compute_actions(
      {.kind = ScheduleKind::k1F1B, .ranks = 2, .chunks_per_rank = 1, .micro_batches = 3});
  EXPECT_THAT(
      lists[0],
      ElementsAre(
          Action{kForward, 0, 0},
          Action{kForward, 0, 1},
          Action{kBackward, 0, 0},
          Action{kForward, 0, 2},
          Action{kBackward, 0, 1},
          Action{kBackward, 0, 2}));
  EXPECT_THAT(
      lists[1],
      ElementsAre(
          Action{kForward, 1, 0},
          Action{kBackward, 1, 0},
          Action{kForward, 1, 1},
          Action{kBackward, 1, 1},
          Action{kForward, 1, 2},
          Action{kBackward, 1, 2}));
}

TEST(PipelineSchedule, ZeroBubbleSplitsAllBackwardsButThoseOfTheFirstChunk) {
  for (const ScheduleShape& shape : valid_shapes(ScheduleKind::kZeroBubble)) {
    for (const std::vector<Action>& list : compute_actions(shape)) {
      for (const Action& action : list) {
        ASSERT_EQ(
            action.kind == ActionKind::kBackward,
            action.chunk == 0 && action.kind != ActionKind::kForward)
            << describe(shape) << ": " << describe(action);
      }
    }
  }
}

TEST(PipelineSchedule, RefusesShapesThatItCannotCompute) {
  const auto error = [](ScheduleKind kind, int ranks, int chunks, int micro_batches) {
    return error_of([&] {
      compute_actions(
          {.kind = kind,
           .ranks = ranks,
           .chunks_per_rank = chunks,
           .micro_batches = micro_batches});
    });
  };
  using enum ScheduleKind;
  EXPECT_THAT(error(k1F1B, 0, 1, 4), HasSubstr("got 0 ranks; expected at least 1"));
  EXPECT_THAT(error(k1F1B, 4, 0, 4), HasSubstr("got 0 chunks per rank; expected at least 1"));
  EXPECT_THAT(error(kGPipe, 4, 1, 0), HasSubstr("got 0 micro-batches; expected at least 1"));
  EXPECT_THAT(
      error(k1F1B, 4, 2, 8),
      HasSubstr("got 2 chunks per rank for 1f1b; expected 1; use interleaved or zero-bubble"));
  EXPECT_THAT(error(kGPipe, 4, 3, 8), HasSubstr("got 3 chunks per rank for gpipe"));
  EXPECT_THAT(
      error(kInterleaved, 4, 1, 8),
      HasSubstr("got 1 chunk per rank for interleaved; expected at least 2; use 1f1b"));
  for (const ScheduleKind kind : {kInterleaved, kZeroBubble}) {
    EXPECT_THAT(
        error(kind, 4, 2, 9),
        HasSubstr(
            "9 micro-batches on 4 ranks with 2 chunks each are computed in 2 rounds, which would "
            "differ in size; expected a multiple of 2; use 8 or 10 micro-batches"));
  }
  EXPECT_THAT(
      error(k1F1B, 100'000, 1, 100'000),
      HasSubstr("are 10000000000 forwards; expected at most 10000000"));
}

TEST(PipelineSchedule, TheProposedNumbersOfMicroBatchesAreValid) {
  for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
    ScheduleShape shape{
        .kind = ScheduleKind::kInterleaved,
        .ranks = 5,
        .chunks_per_rank = 2,
        .micro_batches = micro_batches};
    const std::string error = error_of([&] { compute_actions(shape); });
    if (error == "no error") {
      continue;
    }
    // "...; use 8 or 10 micro-batches, or 1 chunk"
    const size_t use = error.find("use ");
    const size_t either = error.find(" or ", use);
    ASSERT_NE(use, std::string::npos) << error;
    ASSERT_NE(either, std::string::npos) << error;
    const int fewer = std::stoi(error.substr(use + 4));
    const int more = std::stoi(error.substr(either + 4));
    EXPECT_LT(fewer, micro_batches);
    EXPECT_GT(more, micro_batches);
    for (const int proposed : {fewer, more}) {
      shape.micro_batches = proposed;
      EXPECT_EQ(fault_of(shape, compute_actions(shape)), "") << proposed;
    }
  }
}

}  // namespace
}  // namespace lockstep::pipeline_schedule
