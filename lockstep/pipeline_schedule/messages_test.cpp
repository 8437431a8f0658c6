// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline_schedule/messages.h"

#include <algorithm>
#include <map>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_errors.h"
#include "lockstep/pipeline_schedule/simulation.h"
#include "lockstep/pipeline_schedule/test_shapes.h"

namespace lockstep::pipeline_schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

bool is_message(const Action& action) {
  return action.kind >= ActionKind::kSendActivation;
}

/// Returns the action of the other rank that a message needs.
Action counterpart_of(const Action& action) {
  using enum ActionKind;
  static const std::map<ActionKind, std::pair<ActionKind, int>> others = {
      {kSendActivation, {kReceiveActivation, 1}},
      {kReceiveActivation, {kSendActivation, -1}},
      {kSendGradient, {kReceiveGradient, -1}},
      {kReceiveGradient, {kSendGradient, 1}}};
  const auto [kind, step] = others.at(action.kind);
  return {.kind = kind, .chunk = action.chunk + step, .micro_batch = action.micro_batch};
}

ActionLists computations_of(const ActionLists& lists) {
  ActionLists computations;
  for (const std::vector<Action>& list : lists) {
    std::vector<Action>& kept = computations.emplace_back();
    std::copy_if(list.begin(), list.end(), std::back_inserter(kept), [](const Action& action) {
      return !is_message(action);
    });
  }
  return computations;
}

/// Executes lists whose messages block both ranks until both are at the message; returns false if
/// the ranks wait forever.
bool ends_with_rendezvous(const ActionLists& lists) {
  std::vector<size_t> position(lists.size());
  const auto next = [&](size_t rank) -> const Action* {
    return position[rank] < lists[rank].size() ? &lists[rank][position[rank]] : nullptr;
  };
  bool advanced = true;
  while (advanced) {
    advanced = false;
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      while (const Action* action = next(rank)) {
        if (is_message(*action)) {
          const auto peer = static_cast<size_t>(
              peer_of(*action, static_cast<int>(rank), static_cast<int>(lists.size())));
          const Action* const theirs = next(peer);
          if (theirs == nullptr || *theirs != counterpart_of(*action)) {
            break;
          }
          ++position[peer];
        }
        ++position[rank];
        advanced = true;
      }
    }
  }
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    if (next(rank) != nullptr) {
      return false;
    }
  }
  return true;
}

TEST(PipelineMessages, NoRankWaitsForeverEvenIfEveryMessageBlocks) {
  for (const ScheduleShape& shape : valid_shapes()) {
    ASSERT_TRUE(ends_with_rendezvous(add_messages(compute_actions(shape)))) << describe(shape);
  }
}

TEST(PipelineMessages, TheCheckOfTheseTestsFindsARankThatWaitsForever) {
  ActionLists lists = add_messages(compute_actions(
      {.kind = ScheduleKind::k1F1B, .ranks = 2, .chunks_per_rank = 1, .micro_batches = 4}));
  ASSERT_TRUE(ends_with_rendezvous(lists));
  // Both ranks send before they receive, as a naive list of 1F1B does.
  std::vector<Action>& last = lists[1];
  const auto receive =
      std::find(last.begin(), last.end(), Action{ActionKind::kReceiveActivation, 1, 1});
  const auto send = std::find(last.begin(), last.end(), Action{ActionKind::kSendGradient, 1, 0});
  ASSERT_LT(receive, send);
  std::iter_swap(receive, send);
  const auto computed = std::find(last.begin(), last.end(), Action{ActionKind::kBackward, 1, 0});
  ASSERT_LT(receive, computed);
  std::iter_swap(receive, computed);
  EXPECT_FALSE(ends_with_rendezvous(lists));
  EXPECT_GT(simulate(lists).total, 0);  // With sends that do not block, it ends.
}

TEST(PipelineMessages, EveryResultIsSentOnceAndReceivedOnceBeforeItsUse) {
  for (const ScheduleShape& shape : valid_shapes()) {
    const ActionLists computations = compute_actions(shape);
    const ActionLists lists = add_messages(computations);
    ASSERT_EQ(computations_of(lists), computations) << describe(shape);
    size_t messages = 0;
    for (const std::vector<Action>& list : lists) {
      messages += static_cast<size_t>(std::count_if(list.begin(), list.end(), is_message));
    }
    const int borders = shape.ranks == 1 ? 0 : shape.ranks * shape.chunks_per_rank - 1;
    // An activation and a gradient over each border, each sent and received. The simulation finds
    // an order in which one is received late, or in another order than sent.
    ASSERT_EQ(messages, static_cast<size_t>(borders * shape.micro_batches) * 4) << describe(shape);
    ASSERT_NO_THROW(simulate(lists)) << describe(shape);
  }
}

TEST(PipelineMessages, BlockingReceivesCostNoTimeIfSendsDoNotBlock) {
  for (const ScheduleShape& shape : valid_shapes()) {
    const ActionLists computations = compute_actions(shape);
    ASSERT_EQ(simulate(add_messages(computations)).total, simulate(computations).total)
        << describe(shape);
  }
}

TEST(PipelineMessages, TheListsOfTwoRanks) {
  using enum ActionKind;
  const ActionLists lists = add_messages(compute_actions(
      {.kind = ScheduleKind::k1F1B, .ranks = 2, .chunks_per_rank = 1, .micro_batches = 2}));
  EXPECT_THAT(
      lists[0],
      ElementsAre(
          Action{kForward, 0, 0},
          Action{kSendActivation, 0, 0},
          Action{kForward, 0, 1},
          Action{kSendActivation, 0, 1},
          Action{kReceiveGradient, 0, 0},
          Action{kBackward, 0, 0},
          Action{kReceiveGradient, 0, 1},
          Action{kBackward, 0, 1}));
  EXPECT_THAT(
      lists[1],
      ElementsAre(
          Action{kReceiveActivation, 1, 0},
          Action{kForward, 1, 0},
          Action{kReceiveActivation, 1, 1},
          Action{kBackward, 1, 0},
          Action{kSendGradient, 1, 0},
          Action{kForward, 1, 1},
          Action{kBackward, 1, 1},
          Action{kSendGradient, 1, 1}));
}

TEST(PipelineMessages, AReceiveThatMeetsAnotherMessageIsAnError) {
  ActionLists lists = add_messages(compute_actions(
      {.kind = ScheduleKind::kGPipe, .ranks = 2, .chunks_per_rank = 1, .micro_batches = 2}));
  const auto swap = [](std::vector<Action>& list, const Action& a, const Action& b) {
    std::iter_swap(std::find(list.begin(), list.end(), a), std::find(list.begin(), list.end(), b));
  };
  swap(lists[1], {ActionKind::kReceiveActivation, 1, 0}, {ActionKind::kReceiveActivation, 1, 1});
  EXPECT_THAT(
      error_of([&] { simulate(lists); }),
      HasSubstr(
          "rank 1 is receiving the inputs of chunk 1, micro-batch 1, but the next message of rank "
          "0 is from sending the outputs of chunk 0, micro-batch 0; expected receives in the order "
          "of the sends; use add_messages"));
}

TEST(PipelineMessages, PeersAreTheNeighboursInARing) {
  EXPECT_EQ(peer_of({ActionKind::kSendActivation, 3, 0}, 3, 4), 0);
  EXPECT_EQ(peer_of({ActionKind::kReceiveActivation, 4, 0}, 0, 4), 3);
  EXPECT_EQ(peer_of({ActionKind::kSendGradient, 4, 0}, 0, 4), 3);
  EXPECT_EQ(peer_of({ActionKind::kReceiveGradient, 3, 0}, 3, 4), 0);
}

}  // namespace
}  // namespace lockstep::pipeline_schedule
