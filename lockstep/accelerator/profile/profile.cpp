// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/profile/profile.h"

#include <atomic>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "lockstep/accelerator/profile/usdt_line_filter.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace kineto = torch::autograd::profiler;
namespace impl = torch::profiler::impl;

std::atomic<bool> taken = false;

std::set<impl::ActivityType> activities() {
  std::set<impl::ActivityType> all{impl::ActivityType::CPU};
  if (at::hasCUDA()) {
    all.insert(impl::ActivityType::CUDA);
  }
  return all;
}

impl::ProfilerConfig config_of(const ProfileOptions& options) {
  return impl::ProfilerConfig(
      impl::ProfilerState::KINETO,
      options.record_shapes,
      options.profile_memory,
      /*with_stack=*/false,
      options.with_flops,
      /*with_modules=*/false);
}

void check(const ProfileOptions& options) {
  const auto not_negative = [](const char* name, int64_t value) {
    if (value < 0) {
      throw ConfigError("profile", fmt::format("{} is {}; expected 0 or more", name, value));
    }
  };
  not_negative("skip_first", options.skip_first);
  not_negative("wait", options.wait);
  not_negative("warmup", options.warmup);
  not_negative("active", options.active);
  not_negative("repeat", options.repeat);
  if (options.active == 0 && (options.skip_first != 0 || options.wait != 0 || options.warmup != 0 ||
                              options.repeat != 0)) {
    throw ConfigError(
        "profile",
        "skip_first, wait, warmup and repeat have no effect while active is 0; set active to 1 or "
        "more");
  }
  if (options.output_trace_dir.empty()) {
    throw ConfigError("profile", "output_trace_dir is empty; set it to the folder of the traces");
  }
  std::error_code error;
  std::filesystem::create_directories(options.output_trace_dir, error);
  if (error) {
    throw ConfigError(
        "profile",
        fmt::format("cannot create {}: {}", options.output_trace_dir.string(), error.message()));
  }
}

}  // namespace

Profile::Profile(ProfileOptions options, int rank) : options_(std::move(options)), rank_(rank) {
  check(options_);
  if (taken.exchange(true)) {
    throw ConfigError("profile", "another profile of this process is running; finish() it first");
  }
  try {
    enter(phase_at(0));
  } catch (...) {
    taken = false;
    throw;
  }
}

Profile::~Profile() {
  if (!finished_) {
    discard();
    taken = false;
  }
}

Profile::Phase Profile::phase_at(int64_t step) const {
  if (options_.active == 0) {
    return Phase::kActive;
  }
  const int64_t cycle = options_.wait + options_.warmup + options_.active;
  const int64_t since = step - options_.skip_first;
  if (since < 0 || (options_.repeat > 0 && since / cycle >= options_.repeat)) {
    return Phase::kIdle;
  }
  const int64_t within = since % cycle;
  if (within < options_.wait) {
    return Phase::kIdle;
  }
  return within < options_.wait + options_.warmup ? Phase::kWarmup : Phase::kActive;
}

void Profile::step() {
  if (options_.active == 0) {
    throw ConfigError(
        "profile", "step() needs ProfileOptions::active; set active, or do not call step()");
  }
  if (finished_) {
    return;
  }
  ++step_;
  const int64_t cycle = options_.wait + options_.warmup + options_.active;
  const int64_t since = step_ - options_.skip_first;
  // Two active phases may follow each other without a gap; each is a separate trace.
  const bool trace_complete = phase_ == Phase::kActive && since % cycle == 0;
  if (trace_complete) {
    write();
    phase_ = Phase::kIdle;
  }
  enter(phase_at(step_));
}

void Profile::enter(Phase phase) {
  if (phase == phase_) {
    return;
  }
  // Warm-up is recorded too, so that the cost of starting is not in the trace, and thrown away.
  if (phase_ == Phase::kWarmup) {
    discard();
  }
  if (phase != Phase::kIdle) {
    start();
  }
  phase_ = phase;
}

void Profile::start() {
  const internal::UsdtLineFilter filter;
  const impl::ProfilerConfig config = config_of(options_);
  kineto::prepareProfiler(config, activities());
  // Scope "function" alone is what Python's profiler records as well.
  kineto::enableProfiler(
      config,
      activities(),
      {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION});
}

void Profile::discard() noexcept {
  if (phase_ != Phase::kIdle) {
    try {
      const internal::UsdtLineFilter filter;
      kineto::disableProfiler();
    } catch (const std::exception&) {
      // The record is discarded anyway.
    }
    phase_ = Phase::kIdle;
  }
}

void Profile::write() {
  const auto result = [] {
    const internal::UsdtLineFilter filter;
    return kineto::disableProfiler();
  }();
  const std::string name = options_.active == 0
                               ? fmt::format("profile_{}.json", rank_)
                               : fmt::format("profile_{}_{}.json", rank_, traces_.size());
  const std::filesystem::path trace = options_.output_trace_dir / name;
  std::error_code ignored;
  std::filesystem::remove(trace, ignored);  // So that a failure to write is seen as one.
  result->save(trace.string());
  if (!std::filesystem::exists(trace)) {
    throw Error("profile", fmt::format("{} could not be written", trace.string()));
  }
  traces_.push_back(trace);
  if (options_.on_trace_ready) {
    options_.on_trace_ready(trace);
  }
}

std::vector<std::filesystem::path> Profile::finish() {
  if (!finished_) {
    finished_ = true;
    taken = false;
    if (phase_ == Phase::kActive) {
      phase_ = Phase::kIdle;
      write();
    } else {
      discard();
    }
  }
  return traces_;
}

}  // namespace lockstep
