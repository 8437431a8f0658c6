// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/step/micro_step_meter.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>

#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

/// Reads a line "key:   123 kB".
std::optional<double> gigabytes_of(const char* file, const std::string& key) {
  constexpr double kKibibytes = 1 << 20;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":")) {
      std::istringstream value(line.substr(key.size() + 1));
      double kib = 0;
      return value >> kib ? std::optional(kib / kKibibytes) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::string device_memory(c10::Device device) {
  constexpr double kBytes = 1 << 30;
  const auto stats = at::accelerator::getDeviceStats(device.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return fmt::format(
      "device {:.2f} GB (peak {:.2f}), reserved {:.2f}",
      static_cast<double>(stats.allocated_bytes[all].current) / kBytes,
      static_cast<double>(stats.allocated_bytes[all].peak) / kBytes,
      static_cast<double>(stats.reserved_bytes[all].current) / kBytes);
}

/// Describes the memory in use: "device 0.41 GB (peak 0.52), reserved 0.60; process 1.20 GB (peak
/// 1.31); host 20.1 of 62.8 GB". The first part only for a CUDA device. Values that the kernel does
/// not report are omitted. GB are 2^30 bytes.
std::string memory_in_use(c10::Device device) {
  std::vector<std::string> parts;
  if (device.is_cuda()) {
    parts.push_back(device_memory(device));
  }
  const auto now = gigabytes_of("/proc/self/status", "VmRSS");
  const auto most = gigabytes_of("/proc/self/status", "VmHWM");
  if (now && most) {
    parts.push_back(fmt::format("process {:.2f} GB (peak {:.2f})", *now, *most));
  }
  const auto total = gigabytes_of("/proc/meminfo", "MemTotal");
  const auto available = gigabytes_of("/proc/meminfo", "MemAvailable");
  if (total && available) {
    parts.push_back(fmt::format("host {:.1f} of {:.1f} GB", *total - *available, *total));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

MicroStepMeter::MicroStepMeter(EngineContext& context)
    : context_(context), reporter_(*context.reporter) {}

/// Returns whether this is the last micro-step of the profiled update: only that one has all of
/// forward, backward and step.
bool MicroStepMeter::is_profiled() const {
  const ds_config::FlopsProfilerSection& section = context_.config.flops_profiler;
  return section.enabled.value && context_.accelerator->is_main_process() &&
         context_.counter.counts().global_steps == section.profile_step.value &&
         context_.counter.is_boundary();
}

MicroStepMeter::Time MicroStepMeter::synchronized_now() const {
  const at::Device device = context_.accelerator->device();
  if (!device.is_cpu()) {
    at::accelerator::synchronizeDevice(device.index());
  }
  return MicroStepTimes::Clock::now();
}

MicroStepMeter::Time MicroStepMeter::now() const {
  return reporter_.needs_times() || is_profiled() ? synchronized_now()
                                                  : MicroStepTimes::Clock::now();
}

void MicroStepMeter::log_memory(const char* when) const {
  const Accelerator& accelerator = *context_.accelerator;
  if (context_.config.memory_breakdown.value && accelerator.is_main_process()) {
    log_info(fmt::format("memory {}: {}", when, memory_in_use(accelerator.device())));
  }
}

MicroStepMeter::Start MicroStepMeter::begin_forward() {
  const Start start{now(), is_profiled()};
  log_memory("before forward");
  if (start.profiled) {
    const bool on_cpu = context_.accelerator->device().is_cpu();
    profile_.modules = context_.modules();
    profile_.forward.start(
        on_cpu ? std::function<void()>() : [this] { synchronized_now(); }, &profile_.modules);
  }
  return start;
}

void MicroStepMeter::end_forward(const Start& start) {
  profile_.forward.stop();
  log_memory("after forward");
  const double ms = MicroStepTimes::add(micro_step_.forward_ms, start.began, now());
  if (start.profiled) {
    profile_.forward_ms += ms;
  }
}

void MicroStepMeter::begin_backward() {
  backward_began_ = gradients_computed_at_ = now();
}

void MicroStepMeter::mark_gradients_computed() {
  // Only this stream: collectives may continue on other streams.
  const at::Device device = context_.accelerator->device();
  if (!device.is_cpu()) {
    at::accelerator::getCurrentStream(device.index()).synchronize();
  }
  gradients_computed_at_ = MicroStepTimes::Clock::now();
}

void MicroStepMeter::end_backward() {
  const Time ended = now();
  const double ms = MicroStepTimes::add(micro_step_.backward_ms, backward_began_, ended);
  if (measures_gradient_averaging()) {
    MicroStepTimes::add(micro_step_.backward_inner_ms, backward_began_, gradients_computed_at_);
    MicroStepTimes::add(micro_step_.backward_allreduce_ms, gradients_computed_at_, ended);
  }
  if (is_profiled()) {
    profile_.backward_ms += ms;
  }
  log_memory("after backward");
}

void MicroStepMeter::add_gradient_averaging(Time began) {
  const Time ended = now();
  MicroStepTimes::add(micro_step_.backward_ms, began, ended);
  MicroStepTimes::add(micro_step_.backward_allreduce_ms, began, ended);
}

void MicroStepMeter::add_loss(const at::Tensor& part) {
  internal::AcceleratorInternals::step(*context_.accelerator)
      .notify(&internal::TrainingStepObserver::loss_part_given, part);
  if (reporter_.needs_loss()) {
    const c10::AutoGradMode no_grad(false);
    loss_sum_ = loss_sum_.defined() ? at::add(loss_sum_, part) : part;
  }
}

MicroStepMeter::Start MicroStepMeter::begin_step() {
  return {now(), is_profiled()};
}

void MicroStepMeter::end_step(const Start& start, bool is_update) {
  const double ms = MicroStepTimes::add(
      micro_step_.step_ms, start.began, start.profiled ? synchronized_now() : now());
  if (start.profiled) {
    profile_.step_ms = ms;
    report_profile();
  }
  log_memory("after step");
  reporter_.report_micro_step(micro_step_);
  update_ += std::exchange(micro_step_, {});
  if (is_update) {
    report_update();
  }
}

void MicroStepMeter::report_profile() {
  profile_.update = context_.config.flops_profiler.profile_step.value;
  profile_.micro_batch_size = context_.counter.micro_batch_size();
  profile_.ranks = context_.accelerator->mesh().data.size();
  report_flops(profile_, context_.config.flops_profiler);
  profile_.clear();
}

void MicroStepMeter::report_update() {
  const TrainingCounts& counts = context_.counter.counts();
  UpdateFacts facts{
      .global_steps = counts.global_steps,
      .global_samples = counts.global_samples,
      .skipped_steps = counts.skipped_steps,
      .loss = std::nullopt,
      .lr = context_.learning_rates(),
      .mom = context_.momenta(),
      .loss_scale = std::nullopt,
      .timers = std::exchange(update_, {}),
      .checkpoints = std::nullopt};
  if (reporter_.needs_loss() && loss_sum_.defined()) {
    facts.loss = loss_sum_.item<double>();
  }
  if (context_.config.precision.value == FloatDtype::kFloat16) {
    facts.loss_scale = context_.loss_scale();
  }
  if (context_.config.activation_checkpointing.profile.value) {
    facts.checkpoints = context_.activation_checkpointing->take_times();
  }
  reporter_.report_update(facts);
  loss_sum_.reset();
}

}  // namespace lockstep
