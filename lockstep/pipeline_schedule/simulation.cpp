// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline_schedule/simulation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/pipeline_schedule/messages.h"

namespace lockstep::pipeline_schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse_lists(const std::string& what) {
  throw ConfigError("pipeline schedule", what);
}

bool is_message(ActionKind kind) {
  return kind >= ActionKind::kSendActivation;
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
}

bool is_usable(double time) {
  return std::isfinite(time) && time >= 0;
}

/// Executes the actions of all ranks, each as early as possible.
class Simulation {
 public:
  Simulation(const ActionLists& lists, const SimulationTimes& times)
      : lists_(lists), times_(times), position_(lists.size()), clock_(lists.size()) {
    for (const std::vector<Action>& list : lists) {
      for (const Action& action : list) {
        chunks_ = std::max(chunks_, action.chunk + 1);
        micro_batches_ = std::max(micro_batches_, action.micro_batch + 1);
        has_messages_ = has_messages_ || is_message(action.kind);
      }
    }
    check();
    const auto size = static_cast<size_t>(chunks_) * static_cast<size_t>(micro_batches_);
    forward_end_.assign(size, kNever);
    backward_input_end_.assign(size, kNever);
    activation_.assign(size, kNever);
    gradient_.assign(size, kNever);
    sent_.resize(2 * lists.size());
    timeline_.ranks.resize(lists.size());
    timeline_.peak_activations.resize(lists.size());
    held_.resize(lists.size());
  }

  Timeline run() {
    bool advanced = true;
    while (advanced) {
      advanced = false;
      for (size_t rank = 0; rank < lists_.size(); ++rank) {
        while (position_[rank] < lists_[rank].size() && execute(rank)) {
          advanced = true;
        }
      }
    }
    refuse_waiting();
    timeline_.total = clock_.empty() ? 0 : *std::max_element(clock_.begin(), clock_.end());
    return std::move(timeline_);
  }

 private:
  /// A message on its way.
  struct Sent {
    Action send;
    double time = 0;
  };

  void check() const {
    if (times_.chunks.size() != 1 && times_.chunks.size() != static_cast<size_t>(chunks_)) {
      refuse_lists(fmt::format(
          "got times of {} chunks; expected one for all {} chunks, or one for each",
          times_.chunks.size(),
          chunks_));
    }
    bool usable = is_usable(times_.message);
    for (const ChunkTimes& chunk : times_.chunks) {
      usable = usable && is_usable(chunk.forward) && is_usable(chunk.backward_input) &&
               is_usable(chunk.backward_weight);
    }
    if (!usable) {
      refuse_lists("got a time that is negative or not finite; expected numbers of at least 0");
    }
    const int ranks = static_cast<int>(lists_.size());
    for (int rank = 0; rank < ranks; ++rank) {
      for (const Action& action : lists_[static_cast<size_t>(rank)]) {
        if (action.chunk < 0 || action.micro_batch < 0 || action.chunk % ranks != rank) {
          refuse_lists(fmt::format(
              "rank {} of {} has the action {}; expected chunks {}, {} and so on",
              rank,
              ranks,
              describe(action),
              rank,
              rank + ranks));
        }
      }
    }
  }

  size_t index(int chunk, int micro_batch) const {
    return static_cast<size_t>(chunk) * static_cast<size_t>(micro_batches_) +
           static_cast<size_t>(micro_batch);
  }

  const ChunkTimes& times_of(int chunk) const {
    return times_.chunks[times_.chunks.size() == 1 ? 0 : static_cast<size_t>(chunk)];
  }

  double duration(const Action& action) const {
    const ChunkTimes& chunk = times_of(action.chunk);
    switch (action.kind) {
      case ActionKind::kForward:
        return chunk.forward;
      case ActionKind::kBackward:
        return chunk.backward_input + chunk.backward_weight;
      case ActionKind::kBackwardInput:
        return chunk.backward_input;
      case ActionKind::kBackwardWeight:
        return chunk.backward_weight;
      default:
        return 0;
    }
  }

  /// Returns when all inputs of a computation are on its rank; kNever if not yet known.
  double ready(const Action& action) const {
    const size_t at = index(action.chunk, action.micro_batch);
    switch (action.kind) {
      case ActionKind::kForward:
        return action.chunk == 0 ? 0 : activation_[at];
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return action.chunk + 1 == chunks_ ? forward_end_[at]
                                           : std::max(forward_end_[at], gradient_[at]);
      default:
        return backward_input_end_[at];
    }
  }

  /// Executes the next action of a rank; returns false if it must wait for another rank.
  bool execute(size_t rank) {
    const Action& action = lists_[rank][position_[rank]];
    double start = clock_[rank];
    if (is_send(action.kind)) {
      if (!was_computed(action)) {
        return false;
      }
      channel(action, static_cast<int>(rank)).push_back({.send = action, .time = start});
    } else if (is_message(action.kind)) {
      if (!receive(action, rank)) {
        return false;
      }
    } else {
      start = std::max(start, ready(action));
      if (start == kNever) {
        return false;
      }
      clock_[rank] = start + duration(action);
      finish(action, rank);
    }
    timeline_.ranks[rank].push_back({.action = action, .start = start, .end = clock_[rank]});
    ++position_[rank];
    return true;
  }

  /// Returns the messages that rank `sender` has sent to the receiver of `send`. Each pair of
  /// neighbours has one channel in each direction; two ranks are neighbours on both sides, and
  /// share these.
  std::deque<Sent>& channel(const Action& send, int sender) {
    const int ranks = static_cast<int>(lists_.size());
    const bool to_next = peer_of(send, sender, ranks) == (sender + 1) % ranks;
    return sent_[2 * static_cast<size_t>(sender) + (to_next ? 0 : 1)];
  }

  bool was_computed(const Action& send) const {
    const auto& ends =
        send.kind == ActionKind::kSendActivation ? forward_end_ : backward_input_end_;
    return ends[index(send.chunk, send.micro_batch)] != kNever;
  }

  bool receive(const Action& action, size_t rank) {
    const bool activation = action.kind == ActionKind::kReceiveActivation;
    const Action send{
        .kind = activation ? ActionKind::kSendActivation : ActionKind::kSendGradient,
        .chunk = activation ? action.chunk - 1 : action.chunk + 1,
        .micro_batch = action.micro_batch};
    const int peer = peer_of(action, static_cast<int>(rank), static_cast<int>(lists_.size()));
    std::deque<Sent>& messages = channel(send, peer);
    if (messages.empty()) {
      return false;
    }
    if (messages.front().send != send) {
      refuse_lists(fmt::format(
          "rank {} is {}, but the next message of rank {} is from {}; expected receives in the "
          "order of the sends; use add_messages",
          rank,
          describe(action),
          peer,
          describe(messages.front().send)));
    }
    clock_[rank] = std::max(clock_[rank], messages.front().time + times_.message);
    messages.pop_front();
    auto& arrivals = activation ? activation_ : gradient_;
    arrivals[index(action.chunk, action.micro_batch)] = clock_[rank];
    return true;
  }

  /// Notes the results of a computation that has ended.
  void finish(const Action& action, size_t rank) {
    const double end = clock_[rank];
    const double arrival = end + (lists_.size() > 1 ? times_.message : 0);
    timeline_.work += duration(action);
    if (action.kind == ActionKind::kForward) {
      forward_end_[index(action.chunk, action.micro_batch)] = end;
      if (!has_messages_ && action.chunk + 1 < chunks_) {
        activation_[index(action.chunk + 1, action.micro_batch)] = arrival;
      }
      ++held_[rank];
      timeline_.peak_activations[rank] = std::max(timeline_.peak_activations[rank], held_[rank]);
      return;
    }
    if (action.kind != ActionKind::kBackwardInput) {
      --held_[rank];
    }
    if (action.kind != ActionKind::kBackwardWeight) {
      backward_input_end_[index(action.chunk, action.micro_batch)] = end;
      if (!has_messages_ && action.chunk > 0) {
        gradient_[index(action.chunk - 1, action.micro_batch)] = arrival;
      }
    }
  }

  /// Throws if a rank still has actions.
  void refuse_waiting() const {
    std::string waiting;
    for (size_t rank = 0; rank < lists_.size(); ++rank) {
      if (position_[rank] < lists_[rank].size()) {
        waiting += fmt::format(
            "{}rank {} before {}",
            waiting.empty() ? "" : ", ",
            rank,
            describe(lists_[rank][position_[rank]]));
      }
    }
    if (!waiting.empty()) {
      refuse_lists(
          "ranks wait forever: " + waiting +
          "; expected each action behind those it needs; change the order of the actions");
    }
  }

  const ActionLists& lists_;
  const SimulationTimes& times_;
  int chunks_ = 1;
  int micro_batches_ = 1;
  bool has_messages_ = false;
  std::vector<size_t> position_;  ///< [rank] The next action.
  std::vector<double> clock_;     ///< [rank] The end of the last action.
  std::vector<int> held_;         ///< [rank] Activations.
  // [chunk * micro_batches_ + micro_batch] Times on the chunk's rank; kNever: not yet.
  std::vector<double> forward_end_;
  std::vector<double> backward_input_end_;
  std::vector<double> activation_;  ///< The arrival of a forward's input.
  std::vector<double> gradient_;    ///< The arrival of a backward's input.
  std::vector<std::deque<Sent>> sent_;
  Timeline timeline_;
};

}  // namespace

double Timeline::bubble() const {
  return total > 0 ? 1 - work / (total * static_cast<double>(ranks.size())) : 0;
}

double Timeline::bubble_per_work() const {
  return work > 0 ? total * static_cast<double>(ranks.size()) / work - 1 : 0;
}

Timeline simulate(const ActionLists& lists, const SimulationTimes& times) {
  return Simulation(lists, times).run();
}

}  // namespace lockstep::pipeline_schedule
