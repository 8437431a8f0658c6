// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/flight_recorder.h"

#include <algorithm>
#include <unistd.h>
#include <utility>

namespace lockstep::watch {
namespace {

/// Uses private memory if the launcher's cannot be opened (another pid namespace): training works
/// without it.
FlightMemory memory_of(const Environment& environment) {
  if (const auto path = environment.text("LOCKSTEP_FLIGHT")) {
    if (auto shared = FlightMemory::open(*path)) {
      return std::move(*shared);
    }
  }
  return FlightMemory::create();
}

}  // namespace

FlightRecorder& FlightRecorder::process() {
  // Never destroyed: threads of the transports may record operations while the process exits.
  static auto* recorder = new FlightRecorder(Environment::process());
  return *recorder;
}

FlightRecorder::FlightRecorder(const Environment& environment) : memory_(memory_of(environment)) {}

void FlightRecorder::join(int rank, int world) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!memory_.claim(::getpid(), rank, world)) {
    memory_ = FlightMemory::create();
    memory_.claim(::getpid(), rank, world);
  }
}

uint64_t FlightRecorder::issue(Operation operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  operation.number = ++issued_;
  operation.step = step_;
  operation.issued_ns = now_ns();
  operation.stage = Stage::kIssued;
  memory_.write(operation);
  return operation.number;
}

void FlightRecorder::start(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (auto operation = memory_.find(number)) {
    operation->started_ns = now_ns();
    operation->stage = Stage::kRunning;
    memory_.write(*operation);
  }
}

void FlightRecorder::end(uint64_t number, bool succeeded) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (auto operation = memory_.find(number)) {
    operation->ended_ns = now_ns();
    operation->stage = succeeded ? Stage::kDone : Stage::kFailed;
    memory_.write(*operation);
  } else {
    memory_.count_end();
  }
}

void FlightRecorder::set_step(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_ = std::max(step_, step);
  memory_.set_step(step_);
}

void FlightRecorder::begin_saving() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++savings_;
  memory_.set_saving(true);
}

void FlightRecorder::end_saving() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --savings_;
  memory_.set_saving(savings_ > 0);
}

void FlightRecorder::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_.set_left();
}

}  // namespace lockstep::watch
