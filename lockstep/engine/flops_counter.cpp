// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/flops_counter.h"

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

}  // namespace

/// An operation that counts, until it ends.
struct FlopsCounter::Running : at::ObserverContext {
  std::string name;
  OperationCount what;
  Clock::time_point began;
};

std::unique_ptr<at::ObserverContext> FlopsCounter::begin(const at::RecordFunction& function) {
  constexpr std::string_view kNamespace = "aten::";
  const std::string_view name = function.name();
  if (counting == nullptr || within_counted || !name.starts_with(kNamespace)) {
    return nullptr;
  }
  std::string own(name.substr(kNamespace.size()));
  const auto what = operation_count(own, function.inputs());
  if (!what) {
    return nullptr;
  }
  auto running = std::make_unique<Running>();
  running->name = std::move(own);
  running->what = *what;
  within_counted = true;
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
  within_counted = false;
  OperationCount& all = counting->operations_[running->name];
  all.count += running->what.count;
  all.macs += running->what.macs;
  all.flops += running->what.flops;
  all.ms += std::chrono::duration<double, std::milli>(Clock::now() - running->began).count();
}

void FlopsCounter::start(std::function<void()> wait_for_device) {
  LOCKSTEP_ASSERT(
      counting == nullptr, "a thread's operations are counted by one counter at a time");
  wait_for_device_ = std::move(wait_for_device);
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
  counting = this;
  within_counted = false;
}

void FlopsCounter::stop() {
  if (handle_) {
    at::removeCallback(*handle_);
    handle_.reset();
    counting = nullptr;
    within_counted = false;
  }
}

}  // namespace lockstep
