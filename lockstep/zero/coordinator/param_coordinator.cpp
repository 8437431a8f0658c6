// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/param_coordinator.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/zero/coordinator/sharded_unit.h"

namespace lockstep::zero {
ParamCoordinator::ParamCoordinator(Group group, const ParamCoordinatorOptions& options)
    : group_(std::move(group)), options_(options) {}

ParamCoordinator::~ParamCoordinator() {
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

void ParamCoordinator::add(ShardedUnit& pageable, std::string name) {
  units_.push_back(
      std::make_unique<Unit>(this, static_cast<Index>(units_.size()), &pageable, std::move(name)));
  Unit& unit = *units_.back();
  pageable.buffer().set_owner(&unit);
  if (unit.has_memory()) {
    unit.live = true;
    unit.touched = ++clock_;
    live_elements_ += unit.elements();
    unsharded_elements_ += unit.elements();
    max_unsharded_elements_ = std::max(max_unsharded_elements_, unsharded_elements_);
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

int64_t ParamCoordinator::most() const {
  return options_.max_live_elements.value_or(three_largest_);
}

void ParamCoordinator::pin(Unit& unit, bool writes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  note_touch(unit.index);
  ++unit.pins;
  unit.held_exact = unit.held_exact || exact_;
  try {
    if (writes && unit.writers == 0 && !unit.fresh) {
      await_all_to_write(unit);
    } else if (needs_round(unit)) {
      round(group_, {.wanted = unit.index});
    }
    arrive(unit);
    unshard_exact();
  } catch (...) {
    --unit.pins;
    unit.held_exact = unit.held_exact && unit.pins > 0;
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
  // Not before: ranks that still wait must not take it for written to.
  unit.writers += writes ? 1 : 0;
  stale_ = stale_ || writes;
}

/// What this rank holds to the bit another may have wanted rounded since, who was through with it.
void ParamCoordinator::unshard_exact() {
  if (!exact_) {
    return;
  }
  for (const auto& unit : units_) {
    while (unit->held_exact && has_wrong_values(*unit)) {
      round(group_, {.wanted = unit->index});
      arrive(*unit);
    }
  }
}

void ParamCoordinator::unpin(Unit& unit, bool writes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --unit.pins;
  unit.held_exact = unit.held_exact && unit.pins > 0;
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
      const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kShardedParamKey);
      let_go(unit);
    } catch (const std::exception&) {
      // Whoever needs it next is told.
    }
  }
}

void ParamCoordinator::note_touch(Index index) {
  touches_.erase(std::remove(touches_.begin(), touches_.end(), index), touches_.end());
  if (touches_.size() == kTouches) {
    touches_.erase(touches_.begin());
  }
  touches_.push_back(index);
}

/// Rounded where this rank wants them to the bit, or the other way round: what was brought for
/// with_gathered_parameters must not be what training goes on with.
bool ParamCoordinator::has_wrong_values(const Unit& unit) const {
  return unit.exact != exact_ && unit.what->comm_is_rounded();
}

/// What is on its way because some rank waited for it has had its round.
bool ParamCoordinator::needs_round(const Unit& unit) const {
  return !unit.has_memory() || (unit.pending && unit.prefetched) || has_wrong_values(unit);
}

bool ParamCoordinator::must_come(const Unit& unit) const {
  return !unit.live || !unit.has_memory() || has_wrong_values(unit);
}

/// On all ranks, whatever they have of it.
void ParamCoordinator::bring(Index index, bool exact) {
  Unit& unit = *units_[index];
  write_back(unit);
  unit.fresh = false;
  if (!unit.live) {
    make_room(unit.elements(), index);
  }
  start(unit, exact);
}

void ParamCoordinator::start(Unit& unit, bool exact) {
  const bool had_memory = unit.has_memory();
  try {
    if (!had_memory) {
      unit.what->buffer().make_memory(buffer_pool_.find(unit.what->buffer().nbytes()));
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
    unsharded_elements_ += unit.elements();
    max_unsharded_elements_ = std::max(max_unsharded_elements_, unsharded_elements_);
  }
  if (!unit.live) {
    unit.live = true;
    live_elements_ += unit.elements();
  }
  unit.touched = ++clock_;
  unit.exact = exact || !unit.what->comm_is_rounded();
  ++gathers_;
}

void ParamCoordinator::arrive(Unit& unit) {
  if (!unit.pending) {
    return;
  }
  // If it throws, the values have not come, and nobody may read them: it stays on its way.
  const at::Tensor came = unit.pending->wait();
  unit.what->finish_gather(came);
  unit.pending.reset();
}

void ParamCoordinator::write_back(Unit& unit) {
  arrive(unit);
  if (unit.is_dirty()) {
    unit.what->write_back();
    unit.written = false;
  }
}

void ParamCoordinator::evict(Unit& unit) {
  if (unit.live) {
    unit.live = false;
    unit.prefetched = false;
    live_elements_ -= unit.elements();
  }
  unit.fresh = false;
  if (unit.pins == 0) {
    let_go(unit);
  } else if (unit.writers == 0) {
    write_back(unit);  // Now, as on ranks that do not hold it.
  }
}

void ParamCoordinator::reshard_all() {
  for (const auto& unit : units_) {
    evict(*unit);
  }
}

void ParamCoordinator::let_go(Unit& unit) {
  if (!unit.has_memory()) {
    return;
  }
  write_back(unit);
  FlatParamBuffer& buffer = unit.what->buffer();
  at::DataPtr memory = buffer.take_memory();
  if (buffer.values().is_cpu()) {
    buffer_pool_.keep(std::move(memory), buffer.nbytes());
  }
  unsharded_elements_ -= unit.elements();
}

void ParamCoordinator::make_room(int64_t elements, Index keep) {
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

void ParamCoordinator::make_room_for(int64_t elements) {
  const std::lock_guard<std::mutex> lock(mutex_);
  make_room(elements, kNone);
}

void ParamCoordinator::mark_written(const ShardedUnit& pageable) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->what == &pageable) {
      unit->written = unit->fresh = true;
    }
  }
  stale_ = true;
}

bool ParamCoordinator::set_exact(bool exact) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(exact_, exact);
}

void ParamCoordinator::drop_secondary_shards() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stale_ = true;
  for (const auto& unit : units_) {
    unit->what->drop_secondary();
  }
}

void ParamCoordinator::serve() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  round(group_, {});
}

void ParamCoordinator::wait_for_all(int64_t mark) {
  wait_for_all(mark, group_);
}

void ParamCoordinator::wait_for_all(int64_t mark, Group over) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  while (!round(over, {.until = Until::kAllThrough, .mark = mark}).agreed) {
  }
  trace_.end();  // What comes next is stale before it is used: an update comes first.
}

void ParamCoordinator::write_back() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  for (const auto& unit : units_) {
    if (unit->is_dirty()) {
      write_back(*unit);
    }
  }
}

void ParamCoordinator::release_all() {
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
  reshard_all();
  for (const auto& unit : units_) {
    unit->what->drop_secondary();
  }
  stale_ = true;
}

void ParamCoordinator::abandon() noexcept {
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
  trace_.restart();
}

}  // namespace lockstep::zero
