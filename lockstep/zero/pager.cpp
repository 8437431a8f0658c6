// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/pager.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/sync/backward_hooks.h"

namespace lockstep::zero {
namespace {

constexpr size_t kSlabs = 3;

/// What a rank says in a round.
struct Message {
  int64_t wanted;     ///< The unit that it waits for, or kNone.
  int64_t must_come;  ///< Whether that has to be brought.
  int64_t expected;   ///< What it will want next and does not have, or kNone.
  int64_t stale;      ///< Whether second copies are, since the last round.
  int64_t exact;      ///< Whether it wants values to the bit.
};
constexpr int64_t kWords = sizeof(Message) / sizeof(int64_t);

}  // namespace

struct Pager::Unit final : PageOwner {
  Unit(Pager* pager_, Index index_, Pageable* what_, std::string name_)
      : pager(pager_), index(index_), what(what_), name(std::move(name_)) {}
  void pin(bool writes) override { pager->pin(*this, writes); }
  void unpin() noexcept override { pager->unpin(*this); }
  int64_t elements() const { return what->buffer().numel(); }

  Pager* pager;
  Index index;
  Pageable* what;
  std::string name;
  State state = State::kAbsent;
  int64_t pins = 0;
  bool written = false;
  bool exact = false;          ///< What is here is what the shards are, to the bit.
  bool has_secondary = false;  ///< On all ranks, or on none.
  int64_t touched = 0;
  std::optional<Pending> pending = std::nullopt;
};

Pager::Pager(Group group, const PagerOptions& options)
    : group_(std::move(group)), options_(options) {}

Pager::~Pager() {
  for (const auto& unit : units_) {
    unit->what->buffer().set_owner(nullptr);
  }
}

void Pager::add(Pageable& pageable, std::string name) {
  units_.push_back(
      std::make_unique<Unit>(this, static_cast<Index>(units_.size()), &pageable, std::move(name)));
  Unit& unit = *units_.back();
  pageable.buffer().set_owner(&unit);
  if (pageable.buffer().has_memory()) {
    unit.state = State::kHere;
    unit.touched = ++clock_;
    live_elements_ += unit.elements();
    most_live_elements_ = std::max(most_live_elements_, live_elements_);
  }
  std::vector<int64_t> sizes;
  for (const auto& each : units_) {
    sizes.push_back(each->elements());
  }
  const size_t count = std::min<size_t>(3, sizes.size());
  std::partial_sort(sizes.begin(), sizes.begin() + count, sizes.end(), std::greater<>());
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
  ++unit.pins;  // Room that others need is not to be made here.
  if (unit.state != State::kHere || must_come(unit)) {
    const c10::AutoGradMode no_grad(false);
    try {
      round(unit.index);
    } catch (const CommError& error) {
      --unit.pins;
      throw CommError(
          "zero",
          fmt::format(
              "an operation touched {}, of which each rank has a part under ZeRO stage 3, and "
              "waits "
              "for all ranks to do so; touch parameters on all ranks alike, or hold them with "
              "Accelerator::with_gathered_parameters; {}",
              unit.name,
              error.what()));
    }
  }
  unit.written = unit.written || writes;
  stale_ = stale_ || writes;
  unit.touched = ++clock_;
}

void Pager::unpin(Unit& unit) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --unit.pins;
}

bool Pager::must_come(const Unit& unit) const {
  return unit.state == State::kAbsent || (exact_ && !unit.exact);
}

void Pager::round(Index wanted) {
  const Index expected = wanted == kNone || !options_.prefetch ? kNone : expected_after(wanted);
  at::Tensor mine = at::empty({kWords}, at::kLong);
  *reinterpret_cast<Message*>(mine.mutable_data_ptr<int64_t>()) = {
      .wanted = wanted,
      .must_come = wanted != kNone && must_come(*units_[wanted]) ? 1 : 0,
      .expected = expected != kNone && units_[expected]->state == State::kAbsent ? expected : kNone,
      .stale = stale_ ? 1 : 0,
      .exact = exact_ ? 1 : 0};
  const at::Tensor all = group_.all_gather(mine).wait();
  const auto* each = reinterpret_cast<const Message*>(all.const_data_ptr<int64_t>());

  std::vector<Index> to_bring;
  bool unanimous = true;
  bool same_next = true;
  bool stale = false;
  bool exact = false;
  all_settled_ = true;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Message& theirs = each[rank];
    if (theirs.must_come != 0 &&
        std::find(to_bring.begin(), to_bring.end(), theirs.wanted) == to_bring.end()) {
      to_bring.push_back(theirs.wanted);
    }
    unanimous = unanimous && theirs.wanted == each[0].wanted;
    same_next = same_next && theirs.expected == each[0].expected;
    stale = stale || theirs.stale != 0;
    exact = exact || theirs.exact != 0;
    all_settled_ = all_settled_ && theirs.wanted == kNone;
  }
  stale_ = false;
  if (stale) {
    for (const auto& unit : units_) {
      unit->has_secondary = false;
      unit->what->drop_secondary();
    }
  }
  for (const Index index : to_bring) {
    bring(index, exact);
  }
  if (wanted == kNone) {
    return;
  }
  const Index next = unanimous && same_next ? each[0].expected : kNone;
  if (unanimous) {
    learn(wanted);
  }
  // Before waiting for what is wanted: the two travel one right behind the other.
  if (next != kNone && most() >= units_[wanted]->elements() + units_[next]->elements()) {
    make_room(units_[next]->elements(), wanted);
    start(*units_[next], exact);
    ++prefetches_;
  }
  arrive(*units_[wanted]);
}

/// On all ranks, whatever they have of it.
void Pager::bring(Index index, bool exact) {
  Unit& unit = *units_[index];
  if (unit.state == State::kOnItsWay) {
    arrive(unit);
  }
  if (unit.state == State::kHere && unit.written) {
    unit.what->write_back();
    unit.written = false;
  }
  if (unit.state == State::kAbsent) {
    make_room(unit.elements(), index);
  }
  start(unit, exact);
}

void Pager::start(Unit& unit, bool exact) {
  if (unit.state == State::kAbsent) {
    unit.what->buffer().make_memory(find_slab(unit.what->buffer()));
    live_elements_ += unit.elements();
    most_live_elements_ = std::max(most_live_elements_, live_elements_);
  }
  unit.state = State::kOnItsWay;
  unit.touched = ++clock_;
  ++gathers_;
  unit.exact = exact || !unit.what->travels_rounded();
  const Source source = exact                ? Source::kExact
                        : unit.has_secondary ? Source::kSecondary
                                             : Source::kShards;
  secondary_gathers_ += source == Source::kSecondary ? 1 : 0;
  unit.has_secondary =
      unit.has_secondary || (source == Source::kShards && unit.what->keeps_secondary());
  unit.pending = unit.what->start_gather(source);
}

void Pager::arrive(Unit& unit) {
  if (unit.pending) {
    // If it throws, the values have not come, and nobody may read them.
    const at::Tensor came = unit.pending->wait();
    unit.pending.reset();
    unit.what->finish_gather(came);
  }
  unit.state = State::kHere;
}

void Pager::let_go(Unit& unit) {
  if (unit.state == State::kOnItsWay) {
    arrive(unit);
  }
  if (unit.written) {
    unit.what->write_back();
    unit.written = false;
  }
  if (unit.state == State::kHere) {
    PagedBuffer& buffer = unit.what->buffer();
    at::DataPtr memory = buffer.take_memory();
    if (buffer.values().is_cpu() && slabs_.size() < kSlabs) {
      slabs_.push_back({std::move(memory), buffer.nbytes()});
    }
    unit.state = State::kAbsent;
    live_elements_ -= unit.elements();
  }
}

/// The smallest that is large enough, and not much too large. One that was left too small for
/// anything is given back, so that no more than the largest units' worth lies idle.
at::DataPtr Pager::find_slab(const PagedBuffer& buffer) {
  auto best = slabs_.end();
  for (auto slab = slabs_.begin(); slab != slabs_.end(); ++slab) {
    if (slab->bytes >= buffer.nbytes() && slab->bytes <= 2 * buffer.nbytes() &&
        (best == slabs_.end() || slab->bytes < best->bytes)) {
      best = slab;
    }
  }
  if (best == slabs_.end()) {
    if (slabs_.size() == kSlabs) {
      slabs_.erase(slabs_.begin());
    }
    return {};
  }
  at::DataPtr memory = std::move(best->memory);
  slabs_.erase(best);
  return memory;
}

void Pager::make_room(int64_t elements, Index keep) {
  while (live_elements_ + elements > most()) {
    Unit* oldest = nullptr;
    for (const auto& unit : units_) {
      if (unit->state != State::kAbsent && unit->pins == 0 && unit->index != keep &&
          (oldest == nullptr || unit->touched < oldest->touched)) {
        oldest = unit.get();
      }
    }
    if (oldest == nullptr) {
      return;  // All in use: then more are whole than was asked for.
    }
    let_go(*oldest);
  }
}

Pager::Index Pager::expected_after(Index index) const {
  const auto found = next_.find(
      {history_[1], history_[2], index, BackwardHooks::current_backward() != -1 ? 1 : 0});
  return found == next_.end() ? kNone : found->second;
}

void Pager::learn(Index next) {
  next_[history_] = next;
  history_ = {history_[1], history_[2], next, BackwardHooks::current_backward() != -1 ? 1 : 0};
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

void Pager::settle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  do {
    round(kNone);
  } while (!all_settled_);
  learn(kNone);  // What comes next is stale before it is used: an update comes first.
  history_ = {kNone, kNone, kNone, 0};
}

void Pager::write_back() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  for (const auto& unit : units_) {
    if (unit->written) {
      unit->what->write_back();
      unit->written = false;
    }
  }
}

void Pager::release_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  for (const auto& unit : units_) {
    let_go(*unit);
    unit->what->drop_secondary();
  }
  stale_ = true;
}

void Pager::abandon() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->state == State::kOnItsWay) {
      try {
        let_go(*unit);
      } catch (const std::exception&) {
        // The group is dead, and whoever touches the unit is told; its memory may still be written
        // to.
      }
    }
  }
  stale_ = true;
  history_ = {kNone, kNone, kNone, 0};
}

}  // namespace lockstep::zero
