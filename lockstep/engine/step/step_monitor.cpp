// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/step/step_monitor.h"

#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>

#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/base/log.h"
#include "lockstep/engine/profiler/memory_report.h"

namespace lockstep {

StepMonitor::StepMonitor(EngineContext& context) : context_(context), report_(*context.report) {}

/// Returns whether this is the last micro-step of the profiled update: only that one has all of
/// forward, backward and step.
bool StepMonitor::is_profiled() const {
  const ds_config::FlopsProfilerSection& section = context_.config.flops_profiler;
  return section.enabled.value && context_.accelerator->is_main_process() &&
         context_.counter.counts().global_steps == section.profile_step.value &&
         context_.counter.is_boundary();
}

StepMonitor::Time StepMonitor::synchronized_now() const {
  const at::Device device = context_.accelerator->device();
  if (!device.is_cpu()) {
    at::accelerator::synchronizeDevice(device.index());
  }
  return StepTimers::Clock::now();
}

StepMonitor::Time StepMonitor::now() const {
  return report_.needs_times() || is_profiled() ? synchronized_now() : StepTimers::Clock::now();
}

void StepMonitor::log_memory(const char* when) const {
  const Accelerator& accelerator = *context_.accelerator;
  if (context_.config.memory_breakdown.value && accelerator.is_main_process()) {
    log_info(fmt::format("memory {}: {}", when, memory_in_use(accelerator.device())));
  }
}

StepMonitor::Start StepMonitor::begin_forward() {
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

void StepMonitor::end_forward(const Start& start) {
  profile_.forward.stop();
  log_memory("after forward");
  const double ms = StepTimers::add(micro_step_.forward_ms, start.began, now());
  if (start.profiled) {
    profile_.forward_ms += ms;
  }
}

void StepMonitor::begin_backward() {
  backward_began_ = gradients_computed_at_ = now();
}

void StepMonitor::mark_gradients_computed() {
  // Only this stream: collectives may continue on other streams.
  const at::Device device = context_.accelerator->device();
  if (!device.is_cpu()) {
    at::accelerator::getCurrentStream(device.index()).synchronize();
  }
  gradients_computed_at_ = StepTimers::Clock::now();
}

void StepMonitor::end_backward() {
  const Time ended = now();
  const double ms = StepTimers::add(micro_step_.backward_ms, backward_began_, ended);
  if (measures_gradient_averaging()) {
    StepTimers::add(micro_step_.backward_inner_ms, backward_began_, gradients_computed_at_);
    StepTimers::add(micro_step_.backward_allreduce_ms, gradients_computed_at_, ended);
  }
  if (is_profiled()) {
    profile_.backward_ms += ms;
  }
  log_memory("after backward");
}

void StepMonitor::add_gradient_averaging(Time began) {
  const Time ended = now();
  StepTimers::add(micro_step_.backward_ms, began, ended);
  StepTimers::add(micro_step_.backward_allreduce_ms, began, ended);
}

void StepMonitor::add_loss(const at::Tensor& part) {
  AcceleratorInternals::step(*context_.accelerator).notify(&StepObserver::loss_part_given, part);
  if (report_.needs_loss()) {
    const c10::AutoGradMode no_grad(false);
    loss_sum_ = loss_sum_.defined() ? at::add(loss_sum_, part) : part;
  }
}

StepMonitor::Start StepMonitor::begin_step() {
  return {now(), is_profiled()};
}

void StepMonitor::end_step(const Start& start, bool is_update) {
  const double ms = StepTimers::add(
      micro_step_.step_ms, start.began, start.profiled ? synchronized_now() : now());
  if (start.profiled) {
    profile_.step_ms = ms;
    report_profile();
  }
  log_memory("after step");
  report_.report_micro_step(micro_step_);
  update_ += std::exchange(micro_step_, {});
  if (is_update) {
    report_update();
  }
}

void StepMonitor::report_profile() {
  profile_.update = context_.config.flops_profiler.profile_step.value;
  profile_.micro_batch_size = context_.counter.micro_batch_size();
  profile_.ranks = context_.accelerator->num_processes();
  report_flops(profile_, context_.config.flops_profiler);
  profile_.clear();
}

void StepMonitor::report_update() {
  const StepCounts& counts = context_.counter.counts();
  StepFacts facts{
      .global_steps = counts.global_steps,
      .global_samples = counts.global_samples,
      .skipped_steps = counts.skipped_steps,
      .loss = std::nullopt,
      .lr = context_.learning_rates(),
      .mom = context_.momenta(),
      .loss_scale = std::nullopt,
      .timers = std::exchange(update_, {}),
      .checkpoints = std::nullopt};
  if (report_.needs_loss() && loss_sum_.defined()) {
    facts.loss = loss_sum_.item<double>();
  }
  if (context_.config.precision.value == FloatDtype::kFloat16) {
    facts.loss_scale = context_.loss_scale();
  }
  if (context_.config.activation_checkpointing.profile.value) {
    facts.checkpoints = context_.activation_checkpointing->take_times();
  }
  report_.report_update(facts);
  loss_sum_.reset();
}

}  // namespace lockstep
