// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/step_recorder.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/DeviceAccelerator.h>

#include "lockstep/base/memory/resident_bytes.h"
#include "lockstep/watch/flight_memory.h"

namespace lockstep {
namespace {

using tracking::add_times;
using tracking::PartTimes;
using tracking::StepPart;
using tracking::total_ns;

constexpr int64_t kRecordNs = 100'000'000;

int64_t device_peak_bytes(at::Device device) {
  if (!device.is_cuda()) {
    return 0;
  }
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(device.index()).allocated_bytes[all].peak;
}

}  // namespace

StepRecorder::StepRecorder(
    const std::filesystem::path& file, const nlohmann::ordered_json& header, at::Device device)
    : file_(file, header),
      device_(device),
      times_(StepPart::kOther, watch::now_ns()),
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

// Appending to `times_` allocates only below 16 nested parts.
void StepRecorder::enter(Part part) noexcept {
  times_.enter(part, watch::now_ns());
}

void StepRecorder::leave() noexcept {
  times_.leave(watch::now_ns());
}

void StepRecorder::begin_data() {
  if (!std::exchange(waits_for_data_, true)) {
    enter(Part::kData);
  }
}

void StepRecorder::end_data() {
  if (std::exchange(waits_for_data_, false)) {
    leave();
  }
}

PartTimes StepRecorder::begin_pass(bool outermost) {
  const int64_t now = watch::now_ns();
  ++passes_;
  if (outermost) {
    times_.set_base(Part::kForward, now);
    if (!has_backward_) {
      add_times(between_, times_.take(now));
    }
  }
  return times_.read(now);
}

void StepRecorder::end_pass(bool outermost, bool trained, const PartTimes& at_its_begin) {
  end_data();
  --passes_;
  if (!trained) {
    times_.count_as_other_since(at_its_begin, watch::now_ns());
    open_.samples = outermost && !has_backward_ ? 0 : open_.samples;
  }
  if (outermost) {
    end_update();
    write_pending();
    times_.set_base(Part::kOther, watch::now_ns());
  }
}

void StepRecorder::end_body() {
  end_update();
}

void StepRecorder::note_loss(const at::Tensor& loss, double factor) {
  has_backward_ = true;
  if (loss.is_cpu()) {
    open_.loss += loss.item<double>() * factor;
    ++open_.losses;
  }
}

void StepRecorder::note_loss_part(const at::Tensor& part) {
  if (part.is_cpu()) {
    open_.loss_parts += part.item<double>();
    ++open_.parts;
  }
}

void StepRecorder::note_update(const void* optimizer, int64_t step, bool skipped, double lr) {
  if (optimizer_ == nullptr) {
    optimizer_ = optimizer;
  }
  if (optimizer_ != optimizer) {
    return;
  }
  ++updates_;
  record_.step = step;
  record_.skipped += skipped ? 1 : 0;
  record_.lr = lr;
  if (passes_ == 0) {
    end_update();
    times_.set_base(Part::kForward, watch::now_ns());
  }
}

void StepRecorder::end_update() {
  if (updates_ == 0) {
    return;
  }
  const int64_t now = watch::now_ns();
  const PartTimes times = times_.take(now);
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
    file_.write_between(last_step_, std::exchange(between_, {}));
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
  file_.write_step(record_);
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
  between_ = times_.take(watch::now_ns());
  write_pending();
  file_.write_status(tracking::RunStatus::kFinished);
}

}  // namespace lockstep
