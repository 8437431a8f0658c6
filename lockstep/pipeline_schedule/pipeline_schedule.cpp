// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline_schedule/pipeline_schedule.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::pipeline_schedule {
namespace {

constexpr int64_t kMostForwards = 10'000'000;

/// Returns the number of rounds in which the chunks of a rank take turns.
int rounds_of(int ranks, int micro_batches) {
  return std::max(1, micro_batches / ranks);
}

bool fits_rounds(int ranks, int micro_batches) {
  return micro_batches % rounds_of(ranks, micro_batches) == 0;
}

[[noreturn]] void refuse_shape(const std::string& what) {
  throw ConfigError("pipeline schedule", what);
}

void check_at_least_one(const char* what, int number) {
  if (number < 1) {
    refuse_shape(fmt::format("got {} {}; expected at least 1", number, what));
  }
}

void check_rounds(const ScheduleShape& shape) {
  if (shape.chunks_per_rank == 1 || fits_rounds(shape.ranks, shape.micro_batches)) {
    return;
  }
  // A multiple of the ranks always fits, so both searches end.
  int fewer = shape.micro_batches;
  int more = shape.micro_batches;
  while (!fits_rounds(shape.ranks, fewer)) {
    --fewer;
  }
  while (!fits_rounds(shape.ranks, more)) {
    ++more;
  }
  refuse_shape(fmt::format(
      "{} micro-batches on {} ranks with {} chunks each are computed in {} rounds, which would "
      "differ in size; expected a multiple of {}; use {} or {} micro-batches, or 1 chunk",
      shape.micro_batches,
      shape.ranks,
      shape.chunks_per_rank,
      rounds_of(shape.ranks, shape.micro_batches),
      rounds_of(shape.ranks, shape.micro_batches),
      fewer,
      more));
}

void check(const ScheduleShape& shape) {
  check_at_least_one("ranks", shape.ranks);
  check_at_least_one("chunks per rank", shape.chunks_per_rank);
  check_at_least_one("micro-batches", shape.micro_batches);
  const double forwards =
      static_cast<double>(shape.ranks) * shape.chunks_per_rank * shape.micro_batches;
  if (forwards > kMostForwards) {
    refuse_shape(fmt::format(
        "{} ranks, {} chunks per rank and {} micro-batches are {:.0f} forwards; expected at "
        "most {}; use fewer micro-batches",
        shape.ranks,
        shape.chunks_per_rank,
        shape.micro_batches,
        forwards,
        kMostForwards));
  }
  const bool one_chunk = shape.kind == ScheduleKind::kGPipe || shape.kind == ScheduleKind::k1F1B;
  if (one_chunk && shape.chunks_per_rank != 1) {
    refuse_shape(fmt::format(
        "got {} chunks per rank for {}; expected 1; use interleaved or zero-bubble for more",
        shape.chunks_per_rank,
        name_of(shape.kind)));
  }
  if (shape.kind == ScheduleKind::kInterleaved && shape.chunks_per_rank < 2) {
    refuse_shape("got 1 chunk per rank for interleaved; expected at least 2; use 1f1b for 1");
  }
  check_rounds(shape);
}

std::vector<Action> gpipe_actions(int rank, int micro_batches) {
  std::vector<Action> actions;
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
    for (int i = 0; i < micro_batches; ++i) {
      actions.push_back({.kind = kind, .chunk = rank, .micro_batch = i});
    }
  }
  return actions;
}

/// The actions of one rank in 1F1B and its variants: forwards that fill the pipeline, then forwards
/// and backwards in turn, then the remaining backwards.
class OneForwardOneBackward {
 public:
  OneForwardOneBackward(const ScheduleShape& shape, int rank)
      : shape_(shape),
        rank_(rank),
        round_(
            shape.chunks_per_rank == 1
                ? shape.micro_batches
                : shape.micro_batches / rounds_of(shape.ranks, shape.micro_batches)) {}

  std::vector<Action> actions() {
    const bool splits = shape_.kind == ScheduleKind::kZeroBubble;
    const int total = shape_.chunks_per_rank * shape_.micro_batches;
    const int first_forwards = warm_up(total);
    for (int i = 0; i < first_forwards; ++i) {
      add(ActionKind::kForward, i);
    }
    // Weight gradients wait for `rank_` further backwards. This fills the idle time at the end, and
    // no rank holds more activations than rank 0.
    for (int i = 0; i < total; ++i) {
      if (first_forwards + i < total) {
        add(ActionKind::kForward, first_forwards + i);
      }
      add(splits ? ActionKind::kBackwardInput : ActionKind::kBackward, i);
      if (splits && i >= rank_) {
        add(ActionKind::kBackwardWeight, i - rank_);
      }
    }
    if (splits) {
      for (int i = std::max(0, total - rank_); i < total; ++i) {
        add(ActionKind::kBackwardWeight, i);
      }
    }
    return std::move(actions_);
  }

 private:
  /// Returns the number of forwards before the first pair of a forward and a backward.
  int warm_up(int total) const {
    // Interleaved ranks also compute while messages are sent to the next rank and back.
    const int per_rank = shape_.kind == ScheduleKind::kInterleaved ? 2 : 1;
    return std::min(
        total, (shape_.chunks_per_rank - 1) * round_ + per_rank * (shape_.ranks - 1 - rank_));
  }

  /// Adds the n-th forward or backward of the rank: a round of micro-batches through each chunk in
  /// turn, backwards from the last chunk to the first.
  void add(ActionKind kind, int n) {
    const int turn = n / round_;
    const int local = turn % shape_.chunks_per_rank;
    Action action{
        .kind = kind,
        .chunk = local * shape_.ranks + rank_,
        .micro_batch = turn / shape_.chunks_per_rank * round_ + n % round_};
    if (kind != ActionKind::kForward) {
      action.chunk = (shape_.chunks_per_rank - 1 - local) * shape_.ranks + rank_;
    }
    if (action.chunk == 0 && kind == ActionKind::kBackwardWeight) {
      return;  // On rank 0 it would follow its kBackwardInput at once.
    }
    if (action.chunk == 0 && kind == ActionKind::kBackwardInput) {
      action.kind = ActionKind::kBackward;
    }
    actions_.push_back(action);
  }

  ScheduleShape shape_;
  int rank_;
  int round_;  ///< Micro-batches of one chunk before the next chunk's turn.
  std::vector<Action> actions_;
};

const char* words_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward of";
    case ActionKind::kBackward:
      return "backward of";
    case ActionKind::kBackwardInput:
      return "backward for the inputs of";
    case ActionKind::kBackwardWeight:
      return "backward for the weights of";
    case ActionKind::kSendActivation:
      return "sending the outputs of";
    case ActionKind::kReceiveActivation:
      return "receiving the inputs of";
    case ActionKind::kSendGradient:
      return "sending the input gradients of";
    case ActionKind::kReceiveGradient:
      return "receiving the output gradients of";
  }
  return "";
}

}  // namespace

std::string name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGPipe:
      return "gpipe";
    case ScheduleKind::k1F1B:
      return "1f1b";
    case ScheduleKind::kInterleaved:
      return "interleaved";
    case ScheduleKind::kZeroBubble:
      return "zero-bubble";
  }
  return "";
}

std::string describe(const Action& action) {
  return fmt::format(
      "{} chunk {}, micro-batch {}", words_of(action.kind), action.chunk, action.micro_batch);
}

ActionLists compute_actions(const ScheduleShape& shape) {
  check(shape);
  ActionLists lists;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    lists.push_back(
        shape.kind == ScheduleKind::kGPipe ? gpipe_actions(rank, shape.micro_batches)
                                           : OneForwardOneBackward(shape, rank).actions());
  }
  return lists;
}

}  // namespace lockstep::pipeline_schedule
