// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/step_recorder.h"

#include <algorithm>
#include <exception>
#include <string>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <torch/optim/optimizer.h>
#include <torch/version.h>

#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/base/env.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/memory/resident_bytes.h"
#include "lockstep/precision/precision.h"
#include "lockstep/watch/flight_memory.h"

namespace lockstep::internal {
namespace {

using tracking::add_times;
using tracking::LoopPart;
using tracking::PartTimes;
using tracking::total_ns;

constexpr int64_t kRecordNs = 100'000'000;

int64_t device_peak_bytes(at::Device device) {
  if (!device.is_cuda()) {
    return 0;
  }
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(device.index()).allocated_bytes[all].peak;
}

using OrderedJson = nlohmann::ordered_json;

/// Describes the process and its machine: the environment of the run in a report.
OrderedJson header_of(const RunContext& context) {
  const Machine machine = describe_machine();
  const AcceleratorOptions& options = context.options;
  const Environment environment = Environment::process();
  OrderedJson header = {
      {"rank", context.rank()},
      {"world", context.size()},
      {"restart", context.world.restart_count},
      {"time", tracking::wall_time_s()},
      {"run_id", environment.text("TORCHELASTIC_RUN_ID").value_or("")},
      {"pid", ::getpid()},
      {"host", machine.system.host}};
  header["environment"] = OrderedJson{
      {"launcher", context.world.source},
      {"processes", context.size()},
      {"processes_per_host", context.world.local_size},
      {"transport", context.group.transport_name()},
      {"device", context.device.str()},
      {"threads", at::get_num_threads()},
      {"mixed_precision", name_of(context.precision)},
      {"gradient_accumulation_steps", options.gradient_accumulation_plugin->num_steps},
      {"zero_stage", options.zero ? options.zero->stage : 0},
      {"torch", TORCH_VERSION},
      {"system", machine.system.name},
      {"kernel", machine.system.kernel},
      {"cpu", machine.cpu.model},
      {"cores", machine.cpu.cores},
      {"cores_allowed", machine.cpu.allowed},
      {"memory_bytes", machine.memory.bytes},
      {"gpus", machine.gpus}};
  return header;
}

}  // namespace

// --- StepRecorder

StepRecorder::StepRecorder(
    const std::filesystem::path& file, const nlohmann::ordered_json& header, at::Device device)
    : writer_(file, header),
      device_(device),
      timer_(LoopPart::kOther, watch::now_ns()),
      written_ns_(watch::now_ns()) {}

StepRecorder::~StepRecorder() {
  flush();
}

void StepRecorder::flush() noexcept {
  try {
    end_update();
    write_pending();
  } catch (const std::exception&) {
    // No memory for a line.
  }
}

// Appending to `timer_` allocates only below 16 nested parts.
void StepRecorder::part_began(Part part) noexcept {
  timer_.enter(part, watch::now_ns());
}

void StepRecorder::part_ended() noexcept {
  timer_.leave(watch::now_ns());
}

void StepRecorder::batch_requested() {
  if (!std::exchange(waits_for_data_, true)) {
    part_began(Part::kData);
  }
}

void StepRecorder::end_data() {
  if (std::exchange(waits_for_data_, false)) {
    part_ended();
  }
}

void StepRecorder::batch_began(int64_t rows) {
  end_data();
  open_.samples += rows;
}

void StepRecorder::loader_pass_began(const void* loader, bool outermost) {
  const int64_t now = watch::now_ns();
  if (outermost) {
    timer_.set_base(Part::kForward, now);
    if (!has_backward_) {
      add_times(between_, timer_.take(now));
    }
  }
  passes_.try_emplace(loader, timer_.read(now));
}

void StepRecorder::loader_pass_ended(const void* loader, bool outermost, bool trained) {
  end_data();
  const auto pass = passes_.extract(loader);
  if (!trained) {
    if (!pass.empty()) {
      timer_.count_as_other_since(pass.mapped(), watch::now_ns());
    }
    open_.samples = outermost && !has_backward_ ? 0 : open_.samples;
  }
  if (outermost) {
    end_update();
    write_pending();
    timer_.set_base(Part::kOther, watch::now_ns());
  }
}

void StepRecorder::body_ended() {
  end_update();
}

void StepRecorder::loss_given(const GivenLoss& given) {
  if (given.count && !(*given.count > 0)) {
    return;
  }
  has_backward_ = true;
  if (given.loss.is_cpu()) {
    open_.loss += given.loss.item<double>() * (1 / given.count.value_or(1));
    ++open_.losses;
  }
}

void StepRecorder::loss_part_given(const at::Tensor& part) {
  if (part.is_cpu()) {
    open_.loss_parts += part.item<double>();
    ++open_.parts;
  }
}

void StepRecorder::after_update(const Update& update) {
  const torch::optim::Optimizer& inner = update.optimizer.inner();
  if (optimizer_ == nullptr) {
    optimizer_ = &inner;
  }
  if (optimizer_ != &inner) {
    return;
  }
  const auto& groups = inner.param_groups();
  ++updates_;
  record_.step = update.step;
  record_.skipped += update.skipped ? 1 : 0;
  record_.lr = groups.empty() ? 0 : groups.front().options().get_lr();
  if (passes_.empty()) {
    end_update();
    timer_.set_base(Part::kForward, watch::now_ns());
  }
}

void StepRecorder::end_update() {
  if (updates_ == 0) {
    return;
  }
  const int64_t now = watch::now_ns();
  const PartTimes times = timer_.take(now);
  add_times(record_.times, times);
  record_.longest_ns = std::max(record_.longest_ns, total_ns(times) / updates_);
  record_.steps += std::exchange(updates_, 0);
  has_backward_ = false;
  sums_.loss += open_.loss;
  sums_.losses += open_.losses;
  sums_.loss_parts += open_.loss_parts;
  sums_.parts += open_.parts;
  sums_.samples += open_.samples;
  open_ = {};
  if (now - written_ns_ >= kRecordNs) {
    write_pending();
  }
}

void StepRecorder::write_pending() {
  if (total_ns(between_) > 0) {
    writer_.write_between(last_step_, std::exchange(between_, {}));
  }
  if (record_.steps == 0) {
    return;
  }
  if (sums_.parts > 0) {
    record_.loss = sums_.loss_parts / static_cast<double>(record_.steps);
  } else if (sums_.losses > 0) {
    record_.loss = sums_.loss / static_cast<double>(sums_.losses);
  }
  record_.samples = sums_.samples;
  record_.process_bytes = resident_bytes();
  record_.device_bytes = device_peak_bytes(device_);
  writer_.write_step(record_);
  last_step_ = record_.step;
  record_ = {};
  sums_ = {};
  written_ns_ = watch::now_ns();
}

void StepRecorder::finish() {
  if (std::exchange(finished_, true)) {
    return;
  }
  end_update();
  write_pending();
  between_ = timer_.take(watch::now_ns());
  write_pending();
  writer_.write_status(tracking::RunStatus::kFinished);
}

// --- ActiveStepRecorder

bool ActiveStepRecorder::start() {
  const AcceleratorOptions& options = context_.options;
  if (recorder_ || !options.record_steps.value_or(false)) {
    return false;
  }
  const auto file = options.project_config.logging_dir / options.project_name /
                    tracking::step_file_name(context_.rank());
  recorder_ = std::make_shared<StepRecorder>(file, header_of(context_), context_.device);
  outer_ = comm::observe_waits(recorder_);
  return true;
}

ActiveStepRecorder::~ActiveStepRecorder() {
  if (recorder_) {
    recorder_->flush();
    const auto observer = comm::observe_waits(std::move(outer_));
    if (observer != recorder_) {
      comm::observe_waits(observer);  // That of another Accelerator, or of another thread.
    }
  }
}

}  // namespace lockstep::internal
