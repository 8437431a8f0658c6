// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/unshard_protocol.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"

namespace lockstep::zero {

/// One rank's message in an exchange.
struct UnshardProtocol::Message {
  int64_t requested;    ///< The unit that it waits for, or kNone.
  int64_t must_gather;  ///< 1: that unit must be gathered.
  int64_t expected;     ///< Its prediction of the next unit that is not live, or kNone.
  int64_t stale;        ///< 1: secondary shards became stale since the last exchange.
  int64_t exact;        ///< 1: it requests exact values.
  Until until;          ///< Its further condition; `sync_point`: see Request.
  int64_t sync_point;
  int64_t live;  ///< A hash of the units that it considers live.
  std::array<Index, kRecentUses> recent_uses;
};

void UnshardProtocol::add(UnitTraits traits, bool is_live) {
  units_.push_back({.traits = std::move(traits)});
  Unit& unit = units_.back();
  if (is_live) {
    unit.live = true;
    unit.last_use = ++clock_;
    live_elements_ += unit.traits.elements;
  }
  std::vector<int64_t> sizes;
  for (const Unit& each : units_) {
    sizes.push_back(each.traits.elements);
  }
  const size_t count = std::min<size_t>(3, sizes.size());
  std::partial_sort(
      sizes.begin(), sizes.begin() + static_cast<int64_t>(count), sizes.end(), std::greater<>());
  three_largest_ = 0;
  for (size_t i = 0; i < count; ++i) {
    three_largest_ += sizes[i];
  }
}

void UnshardProtocol::report_use(Index unit) {
  std::erase(recent_uses_, unit);
  if (recent_uses_.size() == kRecentUses) {
    recent_uses_.erase(recent_uses_.begin());
  }
  recent_uses_.push_back(unit);
}

bool UnshardProtocol::set_exact(bool exact) {
  return std::exchange(exact_, exact);
}

std::optional<UnshardProtocol::Index> UnshardProtocol::unit_to_release(
    int64_t elements, Index keep) const {
  std::optional<Index> oldest;
  if (live_elements_ + elements > element_limit()) {
    for (Index i = 0; i < static_cast<Index>(units_.size()); ++i) {
      if (units_[i].live && i != keep &&
          (!oldest || units_[i].last_use < units_[*oldest].last_use)) {
        oldest = i;
      }
    }
  }
  return oldest;  // None although it does not fit: one operation needs more than the limit.
}

void UnshardProtocol::mark_live(const Gather& gather) {
  Unit& unit = units_[gather.unit];
  if (!unit.live) {
    unit.live = true;
    live_elements_ += unit.traits.elements;
  }
  unit.prefetched = gather.is_prefetch();
  unit.last_use = ++clock_;
  unit.exact = gather.source == Source::kExact || !unit.traits.comm_is_rounded;
  unit.has_secondary =
      unit.has_secondary || (gather.source == Source::kShards && unit.traits.keeps_secondary);
}

void UnshardProtocol::mark_released(Index unit) {
  if (units_[unit].live) {
    units_[unit].live = false;
    units_[unit].prefetched = false;
    live_elements_ -= units_[unit].traits.elements;
  }
}

void UnshardProtocol::abandon() {
  stale_ = true;
  trace_.restart();
}

UnshardProtocol::Message UnshardProtocol::message_of(const Request& request) const {
  Message message = {
      .requested = request.unit,
      .must_gather = 0,
      .expected = kNone,
      .stale = stale_ ? 1 : 0,
      .exact = exact_ ? 1 : 0,
      .until = request.until,
      .sync_point = request.sync_point,
      .live = live_hash(),
      .recent_uses = {kNone, kNone, kNone, kNone}};
  if (request.unit != kNone) {
    const bool is_complete =
        is_live(request.unit) && request.has_memory && !has_wrong_values(request.unit);
    message.must_gather = is_complete ? 0 : 1;
    const Index next = options_.prefetch ? trace_.after(request.unit) : kNone;
    message.expected = next != kNone && !is_live(next) ? next : kNone;
  }
  std::copy(recent_uses_.begin(), recent_uses_.end(), message.recent_uses.begin());
  return message;
}

UnshardProtocol::Decision UnshardProtocol::exchange(Group& group, const Request& request) {
  constexpr int64_t kWords = sizeof(Message) / sizeof(int64_t);
  const Message message = message_of(request);
  at::Tensor mine = at::empty({kWords}, at::kLong);
  std::memcpy(mine.mutable_data_ptr(), &message, sizeof(message));
  const at::Tensor all = group.all_gather(mine).wait();
  Messages messages(static_cast<size_t>(group.size()));
  std::memcpy(messages.data(), all.const_data_ptr(), messages.size() * sizeof(Message));
  return decide(messages);
}

UnshardProtocol::Decision UnshardProtocol::decide(const Messages& messages) {
  Decision decision;
  apply_reports(messages, decision);
  const Message& first = messages[0];
  const bool unanimous = std::all_of(messages.begin(), messages.end(), [&](const Message& message) {
    return message.requested == first.requested && message.until == first.until;
  });
  decision.agreed =
      unanimous && (first.until == Until::kAllWrite || first.until == Until::kAllDone);
  const bool was_prefetched = add_requested(messages, decision);
  // An exchange before a write to unsharded values does not count.
  if (unanimous && first.requested != kNone && (was_prefetched || !decision.gathers.empty())) {
    add_prefetch(messages, decision);
  }
  decision.error = decision.agreed ? find_sync_error(messages) : find_write_error(messages);
  if (decision.agreed && first.until == Until::kAllDone && !decision.error) {
    trace_.end();  // A prefetch would be stale before its use: an update comes first.
  }
  return decision;
}

/// Applies the parts of the messages that concern all units.
void UnshardProtocol::apply_reports(const Messages& messages, Decision& decision) {
  for (const Message& message : messages) {
    decision.drop_secondary = decision.drop_secondary || message.stale != 0;
    decision.release_all = decision.release_all || message.live != messages[0].live;
    for (const Index unit : message.recent_uses) {
      if (unit != kNone) {
        units_[unit].last_use = ++clock_;
      }
    }
  }
  stale_ = false;
  recent_uses_.clear();
  if (decision.release_all) {
    decision.drop_secondary = true;
    for (Index i = 0; i < static_cast<Index>(units_.size()); ++i) {
      mark_released(i);
    }
    trace_.forget();
    clock_ = 0;
  }
  if (decision.drop_secondary) {
    for (Unit& unit : units_) {
      unit.has_secondary = false;
    }
  }
}

bool UnshardProtocol::add_requested(const Messages& messages, Decision& decision) {
  bool was_prefetched = false;
  for (const Message& message : messages) {
    if (message.requested == kNone || (message.until != Until::kValues && !decision.agreed)) {
      continue;
    }
    decision.changed = true;
    Unit& unit = units_[message.requested];
    was_prefetched = std::exchange(unit.prefetched, false) || was_prefetched;
    const auto known =
        std::find_if(decision.gathers.begin(), decision.gathers.end(), [&](const Gather& gather) {
          return gather.unit == message.requested;
        });
    if (known == decision.gathers.end()) {
      if (message.must_gather != 0 || !unit.live) {
        decision.gathers.push_back(
            {message.requested, source_of(message.requested, message.exact != 0)});
      }
    } else if (message.exact != 0) {
      known->source = Source::kExact;
    }
  }
  return was_prefetched;
}

void UnshardProtocol::add_prefetch(const Messages& messages, Decision& decision) {
  const Index requested = messages[0].requested;
  const Index next = messages[0].expected;
  const bool same_next = std::all_of(messages.begin(), messages.end(), [&](const Message& message) {
    return message.expected == next;
  });
  trace_.record(requested);
  // `next` is not live: its ranks say so. The requested unit is live when the prefetch starts.
  if (!same_next || next == kNone || next == requested ||
      element_limit() < units_[requested].traits.elements + units_[next].traits.elements) {
    return;
  }
  const bool exact = std::any_of(
      messages.begin(), messages.end(), [](const Message& message) { return message.exact != 0; });
  decision.gathers.push_back({next, source_of(next, exact), /*follows=*/requested});
}

Source UnshardProtocol::source_of(Index unit, bool exact) const {
  return exact ? Source::kExact : units_[unit].has_secondary ? Source::kSecondary : Source::kShards;
}

/// Returns a CommError if ranks in wait_for_all have different sync points; else null.
std::exception_ptr UnshardProtocol::find_sync_error(const Messages& messages) {
  const auto other = std::find_if(messages.begin(), messages.end(), [&](const Message& message) {
    return message.sync_point != messages[0].sync_point;
  });
  if (other == messages.end()) {
    return nullptr;
  }
  const auto describe = [](int64_t sync_point) {
    return sync_point == kUpdate ? std::string("an update")
                                 : fmt::format("the end of backward {}", sync_point);
  };
  const auto rank = static_cast<int>(other - messages.begin());
  return std::make_exception_ptr(CommError(
      "zero",
      fmt::format(
          "rank 0 is at {}, rank {} at {}; all ranks must run the same backward passes and "
          "updates; if backward throws on one rank, end the job, or let it throw on all",
          describe(messages[0].sync_point),
          rank,
          describe(other->sync_point)),
      rank));
}

/// Returns a ConfigError if no rank can continue because one writes to a unit and others do not;
/// else null.
std::exception_ptr UnshardProtocol::find_write_error(const Messages& messages) const {
  const bool all_wait = std::all_of(messages.begin(), messages.end(), [](const Message& message) {
    return message.until != Until::kValues;
  });
  const bool gave_up = std::any_of(messages.begin(), messages.end(), [](const Message& message) {
    return message.until == Until::kGaveUp;
  });
  if (!all_wait && !gave_up) {
    return nullptr;  // A rank that got values continues, and may write, too.
  }
  const auto writer = std::find_if(messages.begin(), messages.end(), [](const Message& message) {
    return message.until == Until::kAllWrite || message.until == Until::kGaveUp;
  });
  const auto other = std::find_if(messages.begin(), messages.end(), [&](const Message& message) {
    return message.requested != writer->requested;
  });
  if (other == messages.end()) {
    return nullptr;  // All were ready in the exchange in which one gave up; the next one agrees.
  }
  return std::make_exception_ptr(ConfigError(
      "zero",
      fmt::format(
          "a write to a sharded parameter must happen on all ranks under ZeRO stage 3; got a write "
          "to {} on rank {}, while rank {} {}; write on all ranks alike and in the same order, or "
          "on one of them within Accelerator::with_gathered_parameters(parameters, body, "
          "modifier_rank)",
          name(writer->requested),
          writer - messages.begin(),
          other - messages.begin(),
          other->requested == kNone
              ? std::string("has already reached the end of backward, an update or a save")
              : "uses " + name(other->requested))));
}

/// Returns a hash of the state that must be equal on all ranks.
int64_t UnshardProtocol::live_hash() const {
  uint64_t hash = 14695981039346656037U;  // FNV-1a, by words.
  const auto add = [&](int64_t word) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 1099511628211U;
  };
  for (Index i = 0; i < static_cast<Index>(units_.size()); ++i) {
    if (units_[i].live) {
      add(i);
      add(units_[i].last_use);
      add(units_[i].prefetched ? 1 : 0);
    }
  }
  add(clock_);
  return static_cast<int64_t>(hash);
}

}  // namespace lockstep::zero
