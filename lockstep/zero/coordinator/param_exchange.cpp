// SPDX-License-Identifier: Apache-2.0
// The exchanges in which ranks agree on the units to gather.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/coordinator/sharded_unit.h"

namespace lockstep::zero {

/// All ranks must be ready to write. Otherwise one rank could write before the unit is freed, and
/// another after it was gathered again with the first rank's part already written. Reads of other
/// ranks are served meanwhile.
void ParamCoordinator::await_all_to_write(Unit& unit) {
  using Clock = std::chrono::steady_clock;
  auto since = Clock::now();
  Request request{.requested = unit.index, .until = Until::kAllWrite};
  for (;;) {
    const Outcome outcome = exchange(group_, request);
    if (outcome.agreed) {
      return;
    }
    // A rank in `serve` may wait for a later action of this one.
    const bool gave_up = !outcome.changed && Clock::now() - since > group_.timeout();
    request.until = gave_up ? Until::kGaveUp : Until::kAllWrite;
    since = outcome.changed || gave_up ? Clock::now() : since;
  }
}

std::vector<ParamCoordinator::Message> ParamCoordinator::exchange_messages(
    Group& group, const Request& request) {
  constexpr int64_t kWords = sizeof(Message) / sizeof(int64_t);
  const Index requested = request.requested;
  const Index expected = requested == kNone || !options_.prefetch ? kNone : trace_.after(requested);
  Message message = {
      .requested = requested,
      .must_gather = requested != kNone && must_gather(*units_[requested]) ? 1 : 0,
      .expected = expected != kNone && !units_[expected]->live ? expected : kNone,
      .stale = stale_ ? 1 : 0,
      .exact = exact_ ? 1 : 0,
      .until = request.until,
      .sync_point = request.sync_point,
      .live = live_hash(),
      .recent_uses = {kNone, kNone, kNone, kNone}};
  std::copy(recent_uses_.begin(), recent_uses_.end(), message.recent_uses.begin());
  at::Tensor mine = at::empty({kWords}, at::kLong);
  std::memcpy(mine.mutable_data_ptr(), &message, sizeof(message));
  const at::Tensor all = group.all_gather(mine).wait();
  std::vector<Message> messages(static_cast<size_t>(group_.size()));
  std::memcpy(messages.data(), all.const_data_ptr(), messages.size() * sizeof(Message));
  return messages;
}

ParamCoordinator::Outcome ParamCoordinator::exchange(Group& group, const Request& request) {
  const std::vector<Message> messages = exchange_messages(group, request);
  apply_messages(messages);
  const Message& first = messages[0];
  const bool unanimous = std::all_of(messages.begin(), messages.end(), [&](const Message& message) {
    return message.requested == first.requested && message.until == first.until;
  });
  const bool agreed =
      unanimous && (first.until == Until::kAllWrite || first.until == Until::kAllDone);
  Outcome outcome = {.agreed = agreed, .changed = false};
  std::vector<std::pair<Index, bool>> to_unshard;  // Units, and whether exact.
  bool was_prefetched = false;
  for (const Message& message : messages) {
    if (message.requested == kNone || (message.until != Until::kValues && !agreed)) {
      continue;
    }
    outcome.changed = true;
    Unit& unit = *units_[message.requested];
    was_prefetched = was_prefetched || unit.prefetched;
    unit.prefetched = false;
    const auto known = std::find_if(to_unshard.begin(), to_unshard.end(), [&](const auto& item) {
      return item.first == message.requested;
    });
    if (known != to_unshard.end()) {
      known->second = known->second || message.exact != 0;
    } else if (message.must_gather != 0 || !unit.live) {
      to_unshard.emplace_back(message.requested, message.exact != 0);
    }
  }
  for (const auto& [index, is_exact] : to_unshard) {
    unshard(index, is_exact);
  }
  // An exchange before a write to unsharded values does not count.
  if (unanimous && request.requested != kNone && (was_prefetched || !to_unshard.empty())) {
    prefetch_after(request.requested, messages);
  }
  for (const auto& unit : units_) {
    if (unit->pins > 0) {
      wait_for_gather(*unit);  // Operations around this one are about to use the others.
    }
  }
  // These throw on all ranks, or on none.
  if (agreed) {
    check_same_sync_point(messages);
  } else {
    check_writes(messages);
  }
  return outcome;
}

/// Called before waiting for the requested unit, so that both gathers run one after the other.
void ParamCoordinator::prefetch_after(Index requested, const std::vector<Message>& messages) {
  const Index next = messages[0].expected;
  const bool same_next = std::all_of(messages.begin(), messages.end(), [&](const Message& message) {
    return message.expected == next;
  });
  trace_.learn(requested);
  if (!same_next || next == kNone || units_[next]->live ||
      element_limit() < units_[requested]->elements() + units_[next]->elements()) {
    return;
  }
  const bool exact = std::any_of(
      messages.begin(), messages.end(), [](const Message& message) { return message.exact != 0; });
  free_for(units_[next]->elements(), requested);
  start(*units_[next], exact);
  units_[next]->prefetched = true;
  ++counters_.prefetches;
}

void ParamCoordinator::check_same_sync_point(const std::vector<Message>& messages) {
  const auto other = std::find_if(messages.begin(), messages.end(), [&](const Message& message) {
    return message.sync_point != messages[0].sync_point;
  });
  if (other == messages.end()) {
    return;
  }
  const auto describe = [](int64_t sync_point) {
    return sync_point == kUpdate ? std::string("an update")
                                 : fmt::format("the end of backward {}", sync_point);
  };
  const auto rank = static_cast<int>(other - messages.begin());
  throw CommError(
      "zero",
      fmt::format(
          "rank 0 is at {}, rank {} at {}; all ranks must run the same backward passes and "
          "updates; if backward throws on one rank, end the job, or let it throw on all",
          describe(messages[0].sync_point),
          rank,
          describe(other->sync_point)),
      rank);
}

void ParamCoordinator::check_writes(const std::vector<Message>& messages) const {
  const bool all_wait = std::all_of(messages.begin(), messages.end(), [](const Message& message) {
    return message.until != Until::kValues;
  });
  const bool gave_up = std::any_of(messages.begin(), messages.end(), [](const Message& message) {
    return message.until == Until::kGaveUp;
  });
  if (!all_wait && !gave_up) {
    return;  // A rank that got values continues, and may write, too.
  }
  const auto writer = std::find_if(messages.begin(), messages.end(), [](const Message& message) {
    return message.until == Until::kAllWrite || message.until == Until::kGaveUp;
  });
  const auto other = std::find_if(messages.begin(), messages.end(), [&](const Message& message) {
    return message.requested != writer->requested;
  });
  if (other == messages.end()) {
    return;  // All were ready in the exchange in which one gave up; the next exchange agrees.
  }
  throw ConfigError(
      "zero",
      fmt::format(
          "a write to a sharded parameter must happen on all ranks under ZeRO stage 3; got a write "
          "to {} on rank {}, while rank {} {}; write on all ranks alike and in the same order, or "
          "on one of them within Accelerator::with_gathered_parameters(parameters, body, "
          "modifier_rank)",
          units_[writer->requested]->name,
          writer - messages.begin(),
          other - messages.begin(),
          other->requested == kNone
              ? std::string("has already reached the end of backward, an update or a save")
              : "uses " + units_[other->requested]->name));
}

/// Applies the parts of the messages that concern all units.
void ParamCoordinator::apply_messages(const std::vector<Message>& messages) {
  bool stale = false;
  bool same_live = true;
  for (const Message& message : messages) {
    stale = stale || message.stale != 0;
    same_live = same_live && message.live == messages[0].live;
    for (const Index index : message.recent_uses) {
      if (index != kNone) {
        units_[index]->last_use = ++clock_;
      }
    }
  }
  stale_ = false;
  recent_uses_.clear();
  if (!same_live) {
    reshard_all();
    trace_.forget();
    clock_ = 0;
  }
  if (stale || !same_live) {
    for (const auto& unit : units_) {
      unit->has_secondary = false;
      unit->sharded->drop_secondary();
    }
  }
}

/// Returns a hash of the state that must be equal on all ranks.
int64_t ParamCoordinator::live_hash() const {
  uint64_t hash = 14695981039346656037U;  // FNV-1a, by words.
  const auto add = [&](int64_t word) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 1099511628211U;
  };
  for (const auto& unit : units_) {
    if (unit->live) {
      add(unit->index);
      add(unit->last_use);
      add(unit->prefetched ? 1 : 0);
    }
  }
  add(clock_);
  return static_cast<int64_t>(hash);
}

}  // namespace lockstep::zero
