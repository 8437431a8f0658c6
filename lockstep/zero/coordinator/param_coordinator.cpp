// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/param_coordinator.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep::zero {

/// The coordinator's record of a unit. UnshardProtocol has whether the unit is live.
struct ParamCoordinator::Unit final : AccessHandler {
  Unit(ParamCoordinator* owner, Index place, ShardedUnit* sharded_unit)
      : coordinator(owner), index(place), sharded(sharded_unit) {}
  void pin(bool writes) override { coordinator->pin(*this, writes); }
  void unpin(bool writes) noexcept override { coordinator->unpin(*this, writes); }
  int64_t elements() const { return sharded->buffer().numel(); }
  bool has_memory() const { return sharded->buffer().has_memory(); }
  /// Returns whether the buffer may differ from the ranks' shards.
  bool is_dirty() const { return has_memory() && (written || writers > 0); }

  ParamCoordinator* coordinator;
  Index index;
  ShardedUnit* sharded;

  // The same on all ranks.
  bool fresh = false;   ///< New, and never freed: ranks write to it during initialisation.
  int64_t writers = 0;  ///< Number of pins that write, once all ranks do.
  bool written = false;

  // Only of this rank.
  int64_t pins = 0;
  bool held_exact = false;  ///< One of the pins requires exact values.
  std::optional<Pending> pending = std::nullopt;
};

ParamCoordinator::ParamCoordinator(Group group, const ParamCoordinatorOptions& options)
    : group_(std::move(group)), protocol_(options) {}

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
  units_.push_back(std::make_unique<Unit>(this, static_cast<Index>(units_.size()), &sharded_unit));
  Unit& unit = *units_.back();
  sharded_unit.buffer().set_owner(&unit);
  protocol_.add(
      {.name = std::move(name),
       .elements = unit.elements(),
       .comm_is_rounded = sharded_unit.comm_is_rounded(),
       .keeps_secondary = sharded_unit.keeps_secondary()},
      unit.has_memory());
  if (unit.has_memory()) {
    add_unsharded(unit.elements());
  }
}

void ParamCoordinator::add_unsharded(int64_t elements) {
  unsharded_elements_ += elements;
  counters_.max_unsharded_elements =
      std::max(counters_.max_unsharded_elements, unsharded_elements_);
}

void ParamCoordinator::pin(Unit& unit, bool writes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  protocol_.report_use(unit.index);
  ++unit.pins;
  unit.held_exact = unit.held_exact || protocol_.is_exact();
  try {
    if (writes && unit.writers == 0 && !unit.fresh) {
      await_all_to_write(unit);
    } else if (needs_exchange(unit)) {
      exchange(group_, {.unit = unit.index});
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
              protocol_.name(unit.index),
              error.what()));
    }
  }
  // Counted only after the wait: ranks that still wait must not consider the unit written to.
  if (writes) {
    ++unit.writers;
    protocol_.report_stale();
  }
}

/// All ranks must be ready to write. Otherwise one rank could write before the unit is freed, and
/// another after it was gathered again with the first rank's part already written. Reads of other
/// ranks are served meanwhile.
void ParamCoordinator::await_all_to_write(Unit& unit) {
  using Clock = std::chrono::steady_clock;
  using Until = UnshardProtocol::Until;
  auto since = Clock::now();
  Request request{.unit = unit.index, .until = Until::kAllWrite};
  for (;;) {
    const Decision decision = exchange(group_, request);
    if (decision.agreed) {
      return;
    }
    // A rank in `serve` may wait for a later action of this one.
    const bool gave_up = !decision.changed && Clock::now() - since > group_.timeout();
    request.until = gave_up ? Until::kGaveUp : Until::kAllWrite;
    since = decision.changed || gave_up ? Clock::now() : since;
  }
}

/// Another rank may have released an exactly gathered unit and requested it rounded since.
void ParamCoordinator::unshard_exact() {
  if (!protocol_.is_exact()) {
    return;
  }
  for (const auto& unit : units_) {
    while (unit->held_exact && protocol_.has_wrong_values(unit->index)) {
      exchange(group_, {.unit = unit->index});
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
    protocol_.report_stale();
  }
  if (unit.pins == 0 && !protocol_.is_live(unit.index)) {
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

/// A pending gather that was requested, unlike a prefetch, already had its exchange.
bool ParamCoordinator::needs_exchange(const Unit& unit) const {
  return !unit.has_memory() || (unit.pending && protocol_.is_prefetched(unit.index)) ||
         protocol_.has_wrong_values(unit.index);
}

ParamCoordinator::Decision ParamCoordinator::exchange(Group& group, Request request) {
  request.has_memory = request.unit != UnshardProtocol::kNone && units_[request.unit]->has_memory();
  Decision decision = protocol_.exchange(group, request);
  if (decision.release_all) {
    reshard_all();
  }
  if (decision.drop_secondary) {
    drop_secondary();
  }
  // All start before the wait for the first, so that they run one after the other.
  for (const Gather& gather : decision.gathers) {
    unshard(gather);
  }
  for (const auto& unit : units_) {
    if (unit->pins > 0) {
      wait_for_gather(*unit);  // Operations around this one are about to use the others.
    }
  }
  if (decision.error) {
    std::rethrow_exception(decision.error);
  }
  return decision;
}

void ParamCoordinator::unshard(const Gather& gather) {
  Unit& unit = *units_[gather.unit];
  if (!gather.is_prefetch()) {
    write_back(unit);
    unit.fresh = false;
  }
  if (!protocol_.is_live(gather.unit)) {
    free_for(unit.elements(), gather.follows);
  }
  start(unit, gather);
}

void ParamCoordinator::start(Unit& unit, const Gather& gather) {
  const bool had_memory = unit.has_memory();
  try {
    if (!had_memory) {
      unit.sharded->buffer().make_memory(buffer_pool_.find(unit.sharded->buffer().nbytes()));
    }
    unit.pending = unit.sharded->start_gather(gather.source);
  } catch (...) {
    if (unit.has_memory() && !had_memory) {
      unit.sharded->buffer().take_memory();
    }
    throw;
  }
  protocol_.mark_live(gather);
  if (!had_memory) {
    add_unsharded(unit.elements());
  }
  ++counters_.gathers;
  counters_.prefetches += gather.is_prefetch() ? 1 : 0;
  counters_.secondary_gathers += gather.source == Source::kSecondary ? 1 : 0;
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
  protocol_.mark_released(unit.index);
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
  while (const std::optional<Index> unit = protocol_.unit_to_release(elements, keep)) {
    reshard(*units_[*unit]);
  }
}

void ParamCoordinator::drop_secondary() {
  for (const auto& unit : units_) {
    unit->sharded->drop_secondary();
  }
}

void ParamCoordinator::make_room_for(int64_t elements) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_for(elements);
}

void ParamCoordinator::mark_written(const ShardedUnit& sharded_unit) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->sharded == &sharded_unit) {
      unit->written = unit->fresh = true;
    }
  }
  protocol_.report_stale();
}

bool ParamCoordinator::set_exact(bool exact) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return protocol_.set_exact(exact);
}

void ParamCoordinator::drop_secondary_shards() {
  const std::lock_guard<std::mutex> lock(mutex_);
  protocol_.report_stale();
  drop_secondary();
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
  const Request request{.until = UnshardProtocol::Until::kAllDone, .sync_point = sync_point};
  while (!exchange(group, request).agreed) {
  }
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
              protocol_.name(unit->index)));
    }
  }
  reshard_all();
  drop_secondary();
  protocol_.report_stale();
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
  protocol_.abandon();
}

}  // namespace lockstep::zero
