// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/steps/loop_timer.h"

#include <numeric>
#include <utility>

namespace lockstep::tracking {
namespace {

constexpr size_t kUsualDepth = 16;  // Deeper nesting allocates once more.

int64_t& time_of(PartTimes& times, LoopPart part) {
  return times.at(static_cast<size_t>(part));
}

}  // namespace

const char* name_of(LoopPart part) {
  constexpr std::array<const char*, kLoopParts> kNames = {
      "data", "forward", "backward", "communication", "optimizer", "checkpoint", "other"};
  return kNames.at(static_cast<size_t>(part));
}

int64_t total_ns(const PartTimes& times) {
  return std::accumulate(times.begin(), times.end(), int64_t{0});
}

void add_times(PartTimes& times, const PartTimes& more) {
  for (size_t i = 0; i < times.size(); ++i) {
    times.at(i) += more.at(i);
  }
}

LoopTimer::LoopTimer(LoopPart base, int64_t now_ns) : accounted_ns_(now_ns) {
  entered_.reserve(kUsualDepth);
  entered_.push_back(base);
}

void LoopTimer::account(int64_t now_ns) {
  time_of(times_, entered_.back()) += now_ns - std::exchange(accounted_ns_, now_ns);
}

void LoopTimer::set_base(LoopPart base, int64_t now_ns) {
  account(now_ns);
  entered_.front() = base;
}

void LoopTimer::enter(LoopPart part, int64_t now_ns) {
  account(now_ns);
  entered_.push_back(part);
}

void LoopTimer::leave(int64_t now_ns) {
  account(now_ns);
  if (entered_.size() > 1) {
    entered_.pop_back();
  }
}

const PartTimes& LoopTimer::read(int64_t now_ns) {
  account(now_ns);
  return times_;
}

PartTimes LoopTimer::take(int64_t now_ns) {
  account(now_ns);
  return std::exchange(times_, {});
}

void LoopTimer::count_as_other_since(const PartTimes& before, int64_t now_ns) {
  account(now_ns);
  const int64_t time = total_ns(times_) - total_ns(before);
  times_ = before;
  time_of(times_, LoopPart::kOther) += time;
}

}  // namespace lockstep::tracking
