// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/flops_counter.h"

#include <chrono>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

thread_local FlopsCounter* counting = nullptr;
thread_local bool within_counted = false;
/// The outermost running operation that counts, or uses a module's parameters.
thread_local ModuleEvent* within_event = nullptr;

double ms_between(Clock::time_point began, Clock::time_point ended) {
  return std::chrono::duration<double, std::milli>(ended - began).count();
}

}  // namespace

/// An operation that counts, or uses a module's parameters, until it ends.
struct FlopsCounter::Running : at::ObserverContext {
  std::string name;
  std::optional<OperationCount> cost;
  ModuleEvent event;
  Clock::time_point began;
};

std::unique_ptr<at::ObserverContext> FlopsCounter::begin(const at::RecordFunction& function) {
  constexpr std::string_view kNamespace = "aten::";
  const std::string_view name = function.name();
  if (counting == nullptr || within_counted || !name.starts_with(kNamespace)) {
    return nullptr;
  }
  std::string own(name.substr(kNamespace.size()));
  const auto cost = operation_count(own, function.inputs());
  const auto module = counting->tree_ != nullptr && within_event == nullptr
                          ? counting->tree_->owner_of(function.inputs())
                          : std::nullopt;
  if (!cost && !module) {
    return nullptr;
  }
  auto running = std::make_unique<Running>();
  running->name = std::move(own);
  running->cost = cost;
  running->event.module = module;
  if (within_event == nullptr) {
    within_event = &running->event;
  }
  within_counted = cost.has_value();
  running->began = Clock::now();
  return running;
}

void FlopsCounter::end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  auto* const running = static_cast<Running*>(context);
  if (running == nullptr || counting == nullptr) {
    return;
  }
  if (counting->wait_for_device_) {
    counting->wait_for_device_();
  }
  const Clock::time_point ended = Clock::now();
  if (running->cost) {
    within_counted = false;
    OperationCount& all = counting->operations_[running->name];
    all.count += running->cost->count;
    all.macs += running->cost->macs;
    all.flops += running->cost->flops;
    all.ms += ms_between(running->began, ended);
    within_event->macs += running->cost->macs;
    within_event->flops += running->cost->flops;
  }
  if (within_event == &running->event) {
    within_event = nullptr;
    running->event.began_ms = ms_between(counting->began_, running->began);
    running->event.ended_ms = ms_between(counting->began_, ended);
    counting->events_.push_back(running->event);
  }
}

void FlopsCounter::start(std::function<void()> wait_for_device, const ModuleTree* modules) {
  LOCKSTEP_ASSERT(counting == nullptr, "another FlopsCounter is counting on this thread");
  wait_for_device_ = std::move(wait_for_device);
  tree_ = modules;
  events_.clear();
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
  counting = this;
  within_counted = false;
  within_event = nullptr;
  began_ = Clock::now();
}

void FlopsCounter::stop() {
  if (handle_) {
    at::removeCallback(*handle_);
    handle_.reset();
    counting = nullptr;
    within_counted = false;
    within_event = nullptr;
    if (tree_ != nullptr) {
      const auto costs = tree_->costs(events_, ms_between(began_, Clock::now()));
      modules_.resize(costs.size());
      for (size_t i = 0; i < costs.size(); ++i) {
        modules_[i].macs += costs[i].macs;
        modules_[i].flops += costs[i].flops;
        modules_[i].ms += costs[i].ms;
      }
    }
    events_.clear();
  }
}

}  // namespace lockstep
