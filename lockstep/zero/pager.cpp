// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/pager.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/paged.h"

namespace lockstep::zero {
/// What a rank says in a round.
struct Pager::Message {
  int64_t wanted;     ///< The unit that it waits for, or kNone.
  int64_t must_come;  ///< Whether that has to be brought.
  int64_t expected;   ///< What it will want next and is not live, or kNone.
  int64_t stale;      ///< Whether second copies are, since the last round.
  int64_t exact;      ///< Whether it wants values to the bit.
  int64_t settled;    ///< Whether it is through, and with what.
  int64_t mark;
  int64_t live;  ///< Which units it takes to be live.
  std::array<Index, kTouches> touches;
};

struct Pager::Unit final : PageOwner {
  Unit(Pager* owner, Index place, Pageable* pageable, std::string said)
      : pager(owner), index(place), what(pageable), name(std::move(said)) {}
  void pin(bool writes) override { pager->pin(*this, writes); }
  void unpin(bool writes) noexcept override { pager->unpin(*this, writes); }
  int64_t elements() const { return what->buffer().numel(); }
  bool has_memory() const { return what->buffer().has_memory(); }
  /// Whether what is here may differ from the ranks' own parts.
  bool is_dirty() const { return has_memory() && (written || writers > 0); }

  Pager* pager;
  Index index;
  Pageable* what;
  std::string name;

  // The same on all ranks.
  bool live = false;
  bool prefetched = false;  ///< And no rank has waited for it yet.
  int64_t touched = 0;
  bool exact = false;  ///< What came last is what the shards are, to the bit.
  bool has_secondary = false;

  // Of this rank.
  int64_t pins = 0;
  int64_t writers = 0;  ///< Those of the pins that write.
  bool written = false;
  std::optional<Pending> pending = std::nullopt;
};

Pager::Pager(Group group, const PagerOptions& options)
    : group_(std::move(group)), options_(options) {}

Pager::~Pager() {
  for (const auto& unit : units_) {
    if (unit->pending) {
      // All ranks have started it, and it ends by itself. The model may outlive this.
      try {
        unit->what->finish_gather(unit->pending->wait(std::chrono::seconds(1)));
      } catch (const std::exception&) {
        // A rank is gone: then nobody is to read what came of it.
      }
    }
    unit->what->buffer().set_owner(nullptr);
  }
}

void Pager::add(Pageable& pageable, std::string name) {
  units_.push_back(
      std::make_unique<Unit>(this, static_cast<Index>(units_.size()), &pageable, std::move(name)));
  Unit& unit = *units_.back();
  pageable.buffer().set_owner(&unit);
  if (unit.has_memory()) {
    unit.live = true;
    unit.touched = ++clock_;
    live_elements_ += unit.elements();
    whole_elements_ += unit.elements();
    most_whole_elements_ = std::max(most_whole_elements_, whole_elements_);
  }
  std::vector<int64_t> sizes;
  for (const auto& each : units_) {
    sizes.push_back(each->elements());
  }
  const size_t count = std::min<size_t>(3, sizes.size());
  std::partial_sort(
      sizes.begin(), sizes.begin() + static_cast<int64_t>(count), sizes.end(), std::greater<>());
  three_largest_ = 0;
  for (size_t i = 0; i < count; ++i) {
    three_largest_ += sizes[i];
  }
}

int64_t Pager::most() const {
  return options_.max_live_elements.value_or(three_largest_);
}

void Pager::pin(Unit& unit, bool writes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  note_touch(unit.index);
  ++unit.pins;
  unit.writers += writes ? 1 : 0;
  try {
    if (needs_round(unit)) {
      round(group_, unit.index);
    }
    arrive(unit);
  } catch (...) {
    --unit.pins;
    unit.writers -= writes ? 1 : 0;
    try {
      throw;
    } catch (const CommError& error) {
      throw CommError(
          "zero",
          fmt::format(
              "an operation touched {}, of which each rank has a part under ZeRO stage 3, and "
              "waits for all ranks to do so; touch parameters on all ranks alike, or hold them "
              "with Accelerator::with_gathered_parameters; {}",
              unit.name,
              error.what()));
    }
  }
  stale_ = stale_ || writes;
}

void Pager::unpin(Unit& unit, bool writes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --unit.pins;
  if (writes) {
    // Not before: a round since then may have taken what was there.
    --unit.writers;
    unit.written = true;
    stale_ = true;
  }
  if (unit.pins == 0 && !unit.live) {
    try {
      const c10::AutoGradMode no_grad(false);
      // The operation's own thread may be watched for new tensors, and these are ours.
      const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kPagedKey);
      let_go(unit);
    } catch (const std::exception&) {
      // Whoever needs it next is told.
    }
  }
}

void Pager::note_touch(Index index) {
  touches_.erase(std::remove(touches_.begin(), touches_.end(), index), touches_.end());
  if (touches_.size() == kTouches) {
    touches_.erase(touches_.begin());
  }
  touches_.push_back(index);
}

/// What is on its way because some rank waited for it has had its round.
bool Pager::needs_round(const Unit& unit) const {
  return !unit.has_memory() || (unit.pending && unit.prefetched) || (exact_ && !unit.exact);
}

bool Pager::must_come(const Unit& unit) const {
  return !unit.live || !unit.has_memory() || (exact_ && !unit.exact);
}

bool Pager::round(Group& over, Index wanted, bool settled, int64_t mark) {
  constexpr int64_t kWords = sizeof(Message) / sizeof(int64_t);
  const Index expected = wanted == kNone || !options_.prefetch ? kNone : forecast_.after(wanted);
  at::Tensor mine = at::empty({kWords}, at::kLong);
  Message message = {
      .wanted = wanted,
      .must_come = wanted != kNone && must_come(*units_[wanted]) ? 1 : 0,
      .expected = expected != kNone && !units_[expected]->live ? expected : kNone,
      .stale = stale_ ? 1 : 0,
      .exact = exact_ ? 1 : 0,
      .settled = settled ? 1 : 0,
      .mark = mark,
      .live = live_hash(),
      .touches = {kNone, kNone, kNone, kNone}};
  std::copy(touches_.begin(), touches_.end(), message.touches.begin());
  std::memcpy(mine.mutable_data_ptr(), &message, sizeof(message));
  const at::Tensor all = over.all_gather(mine).wait();
  std::vector<Message> each(static_cast<size_t>(group_.size()));
  std::memcpy(each.data(), all.const_data_ptr(), each.size() * sizeof(Message));
  take_notice(each);

  std::vector<Index> to_bring;
  bool unanimous = true;
  bool same_next = true;
  bool exact = false;
  bool all_settled = true;
  for (const Message& theirs : each) {
    if (theirs.wanted != kNone) {
      Unit& unit = *units_[theirs.wanted];
      unit.prefetched = false;
      if ((theirs.must_come != 0 || !unit.live) &&
          std::find(to_bring.begin(), to_bring.end(), theirs.wanted) == to_bring.end()) {
        to_bring.push_back(theirs.wanted);
      }
    }
    unanimous = unanimous && theirs.wanted == each[0].wanted;
    same_next = same_next && theirs.expected == each[0].expected;
    exact = exact || theirs.exact != 0;
    all_settled = all_settled && theirs.settled != 0;
  }
  for (const Index index : to_bring) {
    bring(index, exact);
  }
  const Index next = unanimous && same_next && wanted != kNone ? each[0].expected : kNone;
  if (unanimous && wanted != kNone) {
    forecast_.learn(wanted);
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
  if (all_settled) {
    for (size_t rank = 0; rank < each.size(); ++rank) {
      if (each[rank].mark != each[0].mark) {
        throw CommError(
            "zero",
            fmt::format(
                "ranks ended a backward together that are not the same one: backward {} of rank 0 "
                "and {} of rank {}; one that threw on some ranks cannot be left out there; end the "
                "job, or let all ranks throw",
                each[0].mark,
                each[rank].mark,
                rank),
            static_cast<int>(rank));
      }
    }
  }
  return all_settled;
}

/// Of what concerns all units.
void Pager::take_notice(const std::vector<Message>& messages) {
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
    evict_all();
    forecast_.forget();
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
int64_t Pager::live_hash() const {
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

/// On all ranks, whatever they have of it.
void Pager::bring(Index index, bool exact) {
  Unit& unit = *units_[index];
  arrive(unit);
  if (unit.is_dirty()) {
    unit.what->write_back();
    unit.written = false;
  }
  if (!unit.live) {
    make_room(unit.elements(), index);
  }
  start(unit, exact);
}

void Pager::start(Unit& unit, bool exact) {
  const bool had_memory = unit.has_memory();
  try {
    if (!had_memory) {
      unit.what->buffer().make_memory(slabs_.find(unit.what->buffer().nbytes()));
    }
    const Source source = exact                ? Source::kExact
                          : unit.has_secondary ? Source::kSecondary
                                               : Source::kShards;
    unit.pending = unit.what->start_gather(source);
    secondary_gathers_ += source == Source::kSecondary ? 1 : 0;
    unit.has_secondary =
        unit.has_secondary || (source == Source::kShards && unit.what->keeps_secondary());
  } catch (...) {
    if (unit.has_memory() && !had_memory) {
      unit.what->buffer().take_memory();
    }
    throw;
  }
  if (!had_memory) {
    whole_elements_ += unit.elements();
    most_whole_elements_ = std::max(most_whole_elements_, whole_elements_);
  }
  if (!unit.live) {
    unit.live = true;
    live_elements_ += unit.elements();
  }
  unit.touched = ++clock_;
  unit.exact = exact || !unit.what->travels_rounded();
  ++gathers_;
}

void Pager::arrive(Unit& unit) {
  if (!unit.pending) {
    return;
  }
  // If it throws, the values have not come, and nobody may read them: it stays on its way.
  const at::Tensor came = unit.pending->wait();
  unit.what->finish_gather(came);
  unit.pending.reset();
}

void Pager::evict(Unit& unit) {
  if (unit.live) {
    unit.live = false;
    unit.prefetched = false;
    live_elements_ -= unit.elements();
  }
  if (unit.pins == 0) {
    let_go(unit);
  }
}

void Pager::evict_all() {
  for (const auto& unit : units_) {
    evict(*unit);
  }
}

void Pager::let_go(Unit& unit) {
  if (!unit.has_memory()) {
    return;
  }
  arrive(unit);
  if (unit.is_dirty()) {
    unit.what->write_back();
    unit.written = false;
  }
  PagedBuffer& buffer = unit.what->buffer();
  at::DataPtr memory = buffer.take_memory();
  if (buffer.values().is_cpu()) {
    slabs_.keep(std::move(memory), buffer.nbytes());
  }
  whole_elements_ -= unit.elements();
}

void Pager::make_room(int64_t elements, Index keep) {
  while (live_elements_ + elements > most()) {
    Unit* oldest = nullptr;
    for (const auto& unit : units_) {
      if (unit->live && unit->index != keep &&
          (oldest == nullptr || unit->touched < oldest->touched)) {
        oldest = unit.get();
      }
    }
    if (oldest == nullptr) {
      return;  // One operation wants more than there may be.
    }
    evict(*oldest);
  }
}

void Pager::make_room_for(int64_t elements) {
  const std::lock_guard<std::mutex> lock(mutex_);
  make_room(elements, kNone);
}

void Pager::mark_written(const Pageable& pageable) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& unit : units_) {
    unit->written = unit->written || unit->what == &pageable;
  }
  stale_ = true;
}

void Pager::set_exact(bool exact) {
  const std::lock_guard<std::mutex> lock(mutex_);
  exact_ = exact;
}

void Pager::drop_secondaries() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stale_ = true;
  for (const auto& unit : units_) {
    unit->what->drop_secondary();
  }
}

void Pager::serve() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  round(group_, kNone);
}

void Pager::settle(int64_t mark) {
  settle(mark, group_);
}

void Pager::settle(int64_t mark, Group over) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  while (!round(over, kNone, /*settled=*/true, mark)) {
  }
  forecast_.end();  // What comes next is stale before it is used: an update comes first.
}

void Pager::write_back() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  for (const auto& unit : units_) {
    if (unit->is_dirty()) {
      arrive(*unit);
      unit->what->write_back();
      unit->written = false;
    }
  }
}

void Pager::release_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  for (const auto& unit : units_) {
    if (unit->pins > 0) {
      throw ConfigError(
          "zero",
          fmt::format(
              "parameters are about to be updated or loaded while {} is held whole; end "
              "with_gathered_parameters before optimizer.step() or load_state()",
              unit->name));
    }
  }
  evict_all();
  for (const auto& unit : units_) {
    unit->what->drop_secondary();
  }
  stale_ = true;
}

void Pager::abandon() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->pending) {
      try {
        evict(*unit);
      } catch (const std::exception&) {
        // The group is dead, and whoever touches the unit is told.
      }
    }
  }
  stale_ = true;
  forecast_.restart();
}

}  // namespace lockstep::zero
