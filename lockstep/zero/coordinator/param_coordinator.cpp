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
      // All ranks have started this gather, so it ends. The model may outlive this.
      try {
        unit->sharded->finish_gather(unit->pending->wait(std::chrono::seconds(1)));
      } catch (const std::exception&) {
        // A rank was lost: the values are not read any more.
      }
    }
    unit->sharded->buffer().set_owner(nullptr);
  }
}

void ParamCoordinator::add(ShardedUnit& sharded_unit, std::string name) {
  units_.push_back(std::make_unique<Unit>(
      this, static_cast<Index>(units_.size()), &sharded_unit, std::move(name)));
  Unit& unit = *units_.back();
  sharded_unit.buffer().set_owner(&unit);
  if (unit.has_memory()) {
    unit.live = true;
    unit.last_use = ++clock_;
    live_elements_ += unit.elements();
    unsharded_elements_ += unit.elements();
    counters_.max_unsharded_elements =
        std::max(counters_.max_unsharded_elements, unsharded_elements_);
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

int64_t ParamCoordinator::element_limit() const {
  return options_.max_live_elements.value_or(three_largest_);
}

void ParamCoordinator::pin(Unit& unit, bool writes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  record_use(unit.index);
  ++unit.pins;
  unit.held_exact = unit.held_exact || exact_;
  try {
    if (writes && unit.writers == 0 && !unit.fresh) {
      await_all_to_write(unit);
    } else if (needs_exchange(unit)) {
      exchange(group_, {.requested = unit.index});
    }
    wait_for_gather(unit);
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
              "the all-gather of {} (ZeRO stage 3) for an operation failed: {}; use the same "
              "parameters on all ranks, or hold them with Accelerator::with_gathered_parameters",
              unit.name,
              error.what()));
    }
  }
  // Counted only after the wait: ranks that still wait must not consider the unit written to.
  unit.writers += writes ? 1 : 0;
  stale_ = stale_ || writes;
}

/// Another rank may have released an exactly gathered unit and requested it rounded since.
void ParamCoordinator::unshard_exact() {
  if (!exact_) {
    return;
  }
  for (const auto& unit : units_) {
    while (unit->held_exact && has_wrong_values(*unit)) {
      exchange(group_, {.requested = unit->index});
      wait_for_gather(*unit);
    }
  }
}

void ParamCoordinator::unpin(Unit& unit, bool writes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --unit.pins;
  unit.held_exact = unit.held_exact && unit.pins > 0;
  if (writes) {
    // Marked only after the operation: an exchange during it may have written back older values.
    --unit.writers;
    unit.written = true;
    stale_ = true;
  }
  if (unit.pins == 0 && !unit.live) {
    try {
      const c10::AutoGradMode no_grad(false);
      // The operation's thread may have an InitInterceptScope, which must not see new tensors here.
      const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kShardedParamKey);
      free_memory(unit);
    } catch (const std::exception&) {
      // The next operation on the unit reports it.
    }
  }
}

void ParamCoordinator::record_use(Index index) {
  recent_uses_.erase(
      std::remove(recent_uses_.begin(), recent_uses_.end(), index), recent_uses_.end());
  if (recent_uses_.size() == kRecentUses) {
    recent_uses_.erase(recent_uses_.begin());
  }
  recent_uses_.push_back(index);
}

/// Returns whether the values are rounded and this rank needs exact ones, or the reverse: training
/// must not continue with the exact values of with_gathered_parameters.
bool ParamCoordinator::has_wrong_values(const Unit& unit) const {
  return unit.exact != exact_ && unit.sharded->comm_is_rounded();
}

/// A pending gather that was requested, unlike a prefetch, already had its exchange.
bool ParamCoordinator::needs_exchange(const Unit& unit) const {
  return !unit.has_memory() || (unit.pending && unit.prefetched) || has_wrong_values(unit);
}

bool ParamCoordinator::must_gather(const Unit& unit) const {
  return !unit.live || !unit.has_memory() || has_wrong_values(unit);
}

void ParamCoordinator::unshard(Index index, bool exact) {
  Unit& unit = *units_[index];
  write_back(unit);
  unit.fresh = false;
  if (!unit.live) {
    free_for(unit.elements(), index);
  }
  start(unit, exact);
}

void ParamCoordinator::start(Unit& unit, bool exact) {
  const bool had_memory = unit.has_memory();
  try {
    if (!had_memory) {
      unit.sharded->buffer().make_memory(buffer_pool_.find(unit.sharded->buffer().nbytes()));
    }
    const Source source = exact                ? Source::kExact
                          : unit.has_secondary ? Source::kSecondary
                                               : Source::kShards;
    unit.pending = unit.sharded->start_gather(source);
    counters_.secondary_gathers += source == Source::kSecondary ? 1 : 0;
    unit.has_secondary =
        unit.has_secondary || (source == Source::kShards && unit.sharded->keeps_secondary());
  } catch (...) {
    if (unit.has_memory() && !had_memory) {
      unit.sharded->buffer().take_memory();
    }
    throw;
  }
  if (!had_memory) {
    unsharded_elements_ += unit.elements();
    counters_.max_unsharded_elements =
        std::max(counters_.max_unsharded_elements, unsharded_elements_);
  }
  if (!unit.live) {
    unit.live = true;
    live_elements_ += unit.elements();
  }
  unit.last_use = ++clock_;
  unit.exact = exact || !unit.sharded->comm_is_rounded();
  ++counters_.gathers;
}

void ParamCoordinator::wait_for_gather(Unit& unit) {
  if (!unit.pending) {
    return;
  }
  // If it throws, the unit stays pending: its values must not be read.
  const at::Tensor received = unit.pending->wait();
  unit.sharded->finish_gather(received);
  unit.pending.reset();
}

void ParamCoordinator::write_back(Unit& unit) {
  wait_for_gather(unit);
  if (unit.is_dirty()) {
    unit.sharded->write_back();
    unit.written = false;
  }
}

void ParamCoordinator::reshard(Unit& unit) {
  if (unit.live) {
    unit.live = false;
    unit.prefetched = false;
    live_elements_ -= unit.elements();
  }
  unit.fresh = false;
  if (unit.pins == 0) {
    free_memory(unit);
  } else if (unit.writers == 0) {
    write_back(unit);  // Now, as on ranks that do not use it.
  }
}

void ParamCoordinator::reshard_all() {
  for (const auto& unit : units_) {
    reshard(*unit);
  }
}

void ParamCoordinator::free_memory(Unit& unit) {
  if (!unit.has_memory()) {
    return;
  }
  write_back(unit);
  FlatParamBuffer& buffer = unit.sharded->buffer();
  at::DataPtr memory = buffer.take_memory();
  if (buffer.values().is_cpu()) {
    buffer_pool_.keep(std::move(memory), buffer.nbytes());
  }
  unsharded_elements_ -= unit.elements();
}

void ParamCoordinator::free_for(int64_t elements, Index keep) {
  while (live_elements_ + elements > element_limit()) {
    Unit* oldest = nullptr;
    for (const auto& unit : units_) {
      if (unit->live && unit->index != keep &&
          (oldest == nullptr || unit->last_use < oldest->last_use)) {
        oldest = unit.get();
      }
    }
    if (oldest == nullptr) {
      return;  // One operation needs more than the limit.
    }
    reshard(*oldest);
  }
}

void ParamCoordinator::make_room_for(int64_t elements) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_for(elements, kNone);
}

void ParamCoordinator::mark_written(const ShardedUnit& sharded_unit) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->sharded == &sharded_unit) {
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
    unit->sharded->drop_secondary();
  }
}

void ParamCoordinator::serve() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  exchange(group_, {});
}

void ParamCoordinator::wait_for_all(int64_t sync_point) {
  wait_for_all(sync_point, group_);
}

void ParamCoordinator::wait_for_all(int64_t sync_point, Group group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  while (!exchange(group, {.until = Until::kAllDone, .sync_point = sync_point}).agreed) {
  }
  trace_.end();  // A prefetch would be stale before its use: an update comes first.
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
              "parameters cannot be updated or loaded while {} is held; end "
              "with_gathered_parameters before optimizer.step() or load_state()",
              unit->name));
    }
  }
  reshard_all();
  for (const auto& unit : units_) {
    unit->sharded->drop_secondary();
  }
  stale_ = true;
}

void ParamCoordinator::abandon() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->pending) {
      try {
        reshard(*unit);
      } catch (const std::exception&) {
        // The group has failed: the next operation on the unit reports it.
      }
    }
  }
  stale_ = true;
  trace_.restart();
}

}  // namespace lockstep::zero
