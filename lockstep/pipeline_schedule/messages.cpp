// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline_schedule/messages.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>

#include "lockstep/pipeline_schedule/simulation.h"

namespace lockstep::pipeline_schedule {
namespace {

/// An action and its place in the order of the whole pipeline.
struct Event {
  double time = 0;
  bool computes = false;  ///< At the same time, messages come first: computations may need them.
  int rank = 0;           ///< That computes, or sends.
  Action action;          ///< A computation, or a send.

  bool operator<(const Event& other) const {
    return std::tie(time, computes, rank) < std::tie(other.time, other.computes, other.rank);
  }
};

int last_chunk_of(const ActionLists& lists) {
  int last = 0;
  for (const std::vector<Action>& list : lists) {
    for (const Action& action : list) {
      last = std::max(last, action.chunk);
    }
  }
  return last;
}

/// Returns the message with the result of a computation; nothing if no other chunk needs it.
std::optional<Action> send_of(const Action& computation, int last_chunk) {
  Action send = computation;
  if (computation.kind == ActionKind::kForward && computation.chunk < last_chunk) {
    send.kind = ActionKind::kSendActivation;
    return send;
  }
  const bool gives_gradient =
      computation.kind == ActionKind::kBackward || computation.kind == ActionKind::kBackwardInput;
  if (gives_gradient && computation.chunk > 0) {
    send.kind = ActionKind::kSendGradient;
    return send;
  }
  return std::nullopt;
}

Action receive_of(const Action& send) {
  const bool activation = send.kind == ActionKind::kSendActivation;
  return {
      .kind = activation ? ActionKind::kReceiveActivation : ActionKind::kReceiveGradient,
      .chunk = activation ? send.chunk + 1 : send.chunk - 1,
      .micro_batch = send.micro_batch};
}

}  // namespace

int peer_of(const Action& message, int rank, int ranks) {
  const bool next =
      message.kind == ActionKind::kSendActivation || message.kind == ActionKind::kReceiveGradient;
  return (rank + (next ? 1 : ranks - 1)) % ranks;
}

ActionLists add_messages(const ActionLists& computations) {
  if (computations.size() < 2) {
    return computations;
  }
  const int ranks = static_cast<int>(computations.size());
  const int last_chunk = last_chunk_of(computations);
  const Timeline timeline = simulate(computations);
  std::vector<Event> events;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const TimedAction& timed : timeline.ranks[static_cast<size_t>(rank)]) {
      events.push_back(
          {.time = timed.start, .computes = true, .rank = rank, .action = timed.action});
      if (const auto send = send_of(timed.action, last_chunk)) {
        events.push_back({.time = timed.end, .computes = false, .rank = rank, .action = *send});
      }
    }
  }
  std::stable_sort(events.begin(), events.end());
  ActionLists lists(computations.size());
  for (const Event& event : events) {
    lists[static_cast<size_t>(event.rank)].push_back(event.action);
    if (!event.computes) {
      const int peer = peer_of(event.action, event.rank, ranks);
      lists[static_cast<size_t>(peer)].push_back(receive_of(event.action));
    }
  }
  return lists;
}

}  // namespace lockstep::pipeline_schedule
