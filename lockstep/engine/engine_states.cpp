// SPDX-License-Identifier: Apache-2.0
// Deferred averaging, unused parameters, memory, and the end of an engine.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/engine/engine_core.h"
#include "lockstep/engine/profiler/memory_report.h"

namespace lockstep {

void EngineCore::coalesce_grad_reduction(const std::function<void()>& body) {
  const char* const name = "coalesce_grad_reduction";
  accelerator();  // ConfigError if there is none any more.
  if (!config_.managed_gradient_accumulation.value) {
    throw ConfigError(
        name,
        "does not go with managed_gradient_accumulation false, where every step() is an update; "
        "delete that, or use backward alone");
  }
  if (stage() == 0) {
    throw ConfigError(name, "goes with stages 1 to 3; got stage 0; use no_sync()");
  }
  if (within_no_sync_) {
    throw ConfigError(
        name, coalescing_ ? "is under way already; leave it first" : "within no_sync(); leave it");
  }
  if (!has_optimizer_) {
    throw ConfigError(name, "there is no optimizer; add one to the configuration");
  }
  within_no_sync_ = coalescing_ = true;
  try {
    body();
  } catch (...) {
    within_no_sync_ = coalescing_ = false;
    throw;
  }
  within_no_sync_ = coalescing_ = false;
  computed_at_ = now();
  accelerator().average_gradients();
  averaged_ = true;
  const auto ended = now();
  StepTimers::add(micro_timers_.backward_ms, computed_at_, ended);
  StepTimers::add(micro_timers_.backward_allreduce_ms, computed_at_, ended);
}

/// DeepSpeed's ignore_unused_parameters. Every rank knows the same names, so all throw, or none.
void EngineCore::check_unused() const {
  constexpr size_t kMostNames = 8;
  if (config_.zero.ignore_unused_parameters.value || (stage() != 1 && stage() != 2)) {
    return;
  }
  std::vector<std::string> names = accelerator().parameters_without_gradient();
  if (names.empty()) {
    return;
  }
  const size_t count = names.size();
  names.resize(std::min(count, kMostNames));
  throw ConfigError(
      "step",
      fmt::format(
          "{}{} got no gradient in this update on any rank, and "
          "zero_optimization.ignore_unused_parameters is false ({}); let the loss depend on {}, "
          "freeze {} (requires_grad_(false)) before initialize(), or set the key to true",
          fmt::join(names, ", "),
          count > kMostNames ? fmt::format(" and {} more parameters", count - kMostNames) : "",
          config_.zero.ignore_unused_parameters.origin.text,
          count == 1 ? "it" : "them",
          count == 1 ? "it" : "them"));
}

void EngineCore::offload_states(const OffloadStatesOptions& options) {
  accelerator().offload_states(options);
}

void EngineCore::reload_states(bool non_blocking) {
  accelerator().reload_states(non_blocking);
}

void EngineCore::tell_memory(const char* when) const {
  const Accelerator& accelerator =
      this->accelerator();  // ConfigError where there is none any more.
  if (config_.memory_breakdown.value && accelerator.is_main_process()) {
    log_info(fmt::format("memory {}: {}", when, memory_in_use(accelerator.device())));
  }
}

void EngineCore::destroy() {
  if (!accelerator_) {
    return;
  }
  accelerator_->wait_for_save();
  held_.reset();  // It refers to the Accelerator.
  for (const auto& remove : remove_hooks_) {
    remove();
  }
  remove_hooks_.clear();
  if (has_optimizer_) {
    optimizer_.set_sharding(nullptr);  // The program's handles would keep its hooks.
  }
  optimizer_ = {};
  scheduler_ = {};
  has_optimizer_ = has_scheduler_ = false;
  parameters_ = nullptr;
  modules_ = nullptr;
  norm_.reset();
  loss_sum_.reset();
  profile_.clear();
  report_.reset();
  accelerator_->free_memory();
  accelerator_.reset();
  comms_log_.reset();
  activation_checkpointing_.reset();
  given_.connected.reset();
}

}  // namespace lockstep
