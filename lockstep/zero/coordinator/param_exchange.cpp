// SPDX-License-Identifier: Apache-2.0
// How ranks agree on which units come.
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

/// Else one rank could write before the unit goes, and another after it has come again, to values
/// part of which are written already. Who reads meanwhile is served.
void ParamCoordinator::await_all_to_write(Unit& unit) {
  using Clock = std::chrono::steady_clock;
  auto since = Clock::now();
  Request call{.wanted = unit.index, .until = Until::kAllWrite};
  for (;;) {
    const Outcome outcome = round(group_, call);
    if (outcome.agreed) {
      return;
    }
    // A rank in `serve` may wait for what this one has to do.
    const bool in_vain = !outcome.changed && Clock::now() - since > group_.timeout();
    call.until = in_vain ? Until::kNoLonger : Until::kAllWrite;
    since = outcome.changed || in_vain ? Clock::now() : since;
  }
}

ParamCoordinator::Outcome ParamCoordinator::round(Group& over, const Request& call) {
  constexpr int64_t kWords = sizeof(Message) / sizeof(int64_t);
  const Index wanted = call.wanted;
  const Index expected = wanted == kNone || !options_.prefetch ? kNone : trace_.after(wanted);
  at::Tensor mine = at::empty({kWords}, at::kLong);
  Message message = {
      .wanted = wanted,
      .must_come = wanted != kNone && must_come(*units_[wanted]) ? 1 : 0,
      .expected = expected != kNone && !units_[expected]->live ? expected : kNone,
      .stale = stale_ ? 1 : 0,
      .exact = exact_ ? 1 : 0,
      .until = call.until,
      .mark = call.mark,
      .live = live_hash(),
      .touches = {kNone, kNone, kNone, kNone}};
  std::copy(touches_.begin(), touches_.end(), message.touches.begin());
  std::memcpy(mine.mutable_data_ptr(), &message, sizeof(message));
  const at::Tensor all = over.all_gather(mine).wait();
  std::vector<Message> each(static_cast<size_t>(group_.size()));
  std::memcpy(each.data(), all.const_data_ptr(), each.size() * sizeof(Message));
  take_notice(each);

  const bool unanimous = std::all_of(each.begin(), each.end(), [&](const Message& theirs) {
    return theirs.wanted == each[0].wanted && theirs.until == each[0].until;
  });
  const bool agreed =
      unanimous && (each[0].until == Until::kAllWrite || each[0].until == Until::kAllThrough);
  Outcome outcome = {.agreed = agreed, .changed = false};
  std::vector<std::pair<Index, bool>> to_unshard;  // With whether to the bit.
  bool same_next = true;
  bool exact = false;
  bool was_prefetched = false;
  for (const Message& theirs : each) {
    same_next = same_next && theirs.expected == each[0].expected;
    exact = exact || theirs.exact != 0;
    if (theirs.wanted == kNone || (theirs.until != Until::kValues && !agreed)) {
      continue;
    }
    outcome.changed = true;
    Unit& unit = *units_[theirs.wanted];
    was_prefetched = was_prefetched || unit.prefetched;
    unit.prefetched = false;
    const auto there = std::find_if(to_unshard.begin(), to_unshard.end(), [&](const auto& item) {
      return item.first == theirs.wanted;
    });
    if (there != to_unshard.end()) {
      there->second = there->second || theirs.exact != 0;
    } else if (theirs.must_come != 0 || !unit.live) {
      to_unshard.emplace_back(theirs.wanted, theirs.exact != 0);
    }
  }
  for (const auto& [index, to_the_bit] : to_unshard) {
    bring(index, to_the_bit);
  }
  // Not a round that let all write to what was here: as if it had not been.
  const bool teaches = unanimous && wanted != kNone && (was_prefetched || !to_unshard.empty());
  const Index next = teaches && same_next ? each[0].expected : kNone;
  if (teaches) {
    trace_.learn(wanted);
  }
  // Before waiting for what is wanted: the two travel one right behind the other.
  if (next != kNone && !units_[next]->live &&
      most() >= units_[wanted]->elements() + units_[next]->elements()) {
    make_room(units_[next]->elements(), wanted);
    start(*units_[next], exact);
    units_[next]->prefetched = true;
    ++prefetches_;
  }
  for (const auto& unit : units_) {
    if (unit->pins > 0) {
      arrive(*unit);  // What operations around this one are about to use, too.
    }
  }
  check_agreement(each, agreed);
  return outcome;
}

/// On all ranks, or on none.
void ParamCoordinator::check_agreement(const std::vector<Message>& each, bool agreed) const {
  const auto first_that = [&](const auto& is_so) {
    return std::find_if(each.begin(), each.end(), is_so) - each.begin();
  };
  const auto said = [](int64_t mark) {
    return mark == kUpdate ? std::string("an update") : fmt::format("backward {}", mark);
  };
  if (agreed) {
    const auto rank =
        first_that([&](const Message& theirs) { return theirs.mark != each[0].mark; });
    if (static_cast<size_t>(rank) < each.size()) {
      throw CommError(
          "zero",
          fmt::format(
              "ranks ended a backward together that are not the same one: {} of rank 0 "
              "and {} of rank {}; one that threw on some ranks cannot be left out there; end the "
              "job, or let all ranks throw",
              said(each[0].mark),
              said(each[static_cast<size_t>(rank)].mark),
              rank),
          static_cast<int>(rank));
    }
    return;
  }
  const bool all_wait = std::all_of(each.begin(), each.end(), [](const Message& theirs) {
    return theirs.until != Until::kValues;
  });
  const bool in_vain = std::any_of(each.begin(), each.end(), [](const Message& theirs) {
    return theirs.until == Until::kNoLonger;
  });
  if (!all_wait && !in_vain) {
    return;  // Who got values goes on, and may come to write as well.
  }
  const auto writer = first_that([](const Message& theirs) {
    return theirs.until == Until::kAllWrite || theirs.until == Until::kNoLonger;
  });
  const Index written = each[static_cast<size_t>(writer)].wanted;
  const auto other = first_that([&](const Message& theirs) { return theirs.wanted != written; });
  if (static_cast<size_t>(other) == each.size()) {
    return;  // They came to write in the round in which one had waited for too long: the next one.
  }
  const Index its = each[static_cast<size_t>(other)].wanted;
  throw ConfigError(
      "zero",
      fmt::format(
          "each rank keeps its own part of what is written to a parameter under ZeRO stage 3; got "
          "a write to {} on rank {}, while rank {} {}, expected the same writes on all; write on "
          "all ranks alike and in the same order, or on one of them within "
          "Accelerator::with_gathered_parameters(parameters, body, modifier_rank)",
          units_[written]->name,
          writer,
          other,
          its == kNone ? std::string("waits for all to end a backward, to update, or to save")
                       : "is at " + units_[its]->name));
}

/// Of what concerns all units.
void ParamCoordinator::take_notice(const std::vector<Message>& messages) {
  bool stale = false;
  bool same_live = true;
  for (const Message& theirs : messages) {
    stale = stale || theirs.stale != 0;
    same_live = same_live && theirs.live == messages[0].live;
    for (const Index index : theirs.touches) {
      if (index != kNone) {
        units_[index]->touched = ++clock_;
      }
    }
  }
  stale_ = false;
  touches_.clear();
  if (!same_live) {
    reshard_all();
    trace_.forget();
    clock_ = 0;
  }
  if (stale || !same_live) {
    for (const auto& unit : units_) {
      unit->has_secondary = false;
      unit->what->drop_secondary();
    }
  }
}

/// Of what all ranks must agree on to go on together.
int64_t ParamCoordinator::live_hash() const {
  uint64_t hash = 14695981039346656037U;  // FNV-1a, by words.
  const auto add = [&](int64_t word) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 1099511628211U;
  };
  for (const auto& unit : units_) {
    if (unit->live) {
      add(unit->index);
      add(unit->touched);
      add(unit->prefetched ? 1 : 0);
    }
  }
  add(clock_);
  return static_cast<int64_t>(hash);
}

}  // namespace lockstep::zero
