// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/offload/host_update.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

// For parameters in files and state in memory: one is updated, one read, one written.
constexpr int64_t kSlots = 3;

int64_t slots_of(const OffloadOptimizer& options, int64_t fields, bool values_in_files) {
  if (options.device != OffloadDevice::kNvme) {
    return kSlots;
  }
  const int64_t each = std::max<int64_t>(1, fields + (values_in_files ? 1 : 0));
  if (options.buffer_count < each) {
    throw ConfigError(
        "offload",
        fmt::format(
            "offload_optimizer.buffer_count is too small: a bucket needs one buffer for each state "
            "field{}; got offload_optimizer.buffer_count={}, expected at least {}; use {} to "
            "overlap reading and writing with the update",
            values_in_files ? ", and one for its parameters" : "",
            options.buffer_count,
            each,
            3 * each));
  }
  return options.buffer_count / each;
}

at::Device device_of(const std::vector<HostUpdate::Bucket>& buckets) {
  for (const HostUpdate::Bucket& bucket : buckets) {
    for (const RuleCall& call : bucket.calls.calls()) {
      for (const at::Tensor& gradient : call.gradients) {
        if (!gradient.is_cpu()) {
          return gradient.device();
        }
      }
    }
  }
  return at::kCPU;
}

}  // namespace

HostUpdate::HostUpdate(const OffloadOptimizer& options, int64_t fields, bool values_in_files)
    : staging_(options.pin_memory) {
  if (options.device == OffloadDevice::kNvme || values_in_files) {
    swapper_.emplace(offload::TensorSwapperOptions{
        .slots = slots_of(options, fields, values_in_files),
        .read_ahead = options.pipeline_read.value_or(true),
        .write_behind = options.pipeline_write.value_or(true)});
  }
}

std::vector<RuleCall> HostUpdate::fetch(size_t slot, const Bucket& bucket) {
  std::vector<at::Tensor> device;
  for (const RuleCall& call : bucket.calls.calls()) {
    device.insert(device.end(), call.parameters.begin(), call.parameters.end());
    device.insert(device.end(), call.gradients.begin(), call.gradients.end());
  }
  const std::vector<at::Tensor> host = staging_.fetch(slot, device);
  std::vector<RuleCall> calls = bucket.calls.calls();
  auto next = host.begin();
  for (RuleCall& call : calls) {
    const auto count = static_cast<std::ptrdiff_t>(call.parameters.size());
    call.parameters.assign(next, next + count);
    call.gradients.assign(next + count, next + 2 * count);
    next += 2 * count;
  }
  return calls;
}

void HostUpdate::run(
    const std::vector<Bucket>& buckets,
    const std::function<void(size_t group, const RuleCall& call)>& update) {
  std::vector<offload::TensorSwapper::Set> sets;
  sets.reserve(buckets.size());
  for (const Bucket& bucket : buckets) {
    sets.push_back(bucket.files);
  }
  staging_.begin(device_of(buckets));
  std::array<std::vector<RuleCall>, offload::HostStaging::kSlots> fetched;
  const auto start = [&](size_t index) {
    if (index < buckets.size()) {
      fetched[index % fetched.size()] = fetch(index % fetched.size(), buckets[index]);
    }
  };
  start(0);
  const auto work = [&](size_t index) {
    start(index + 1);
    const size_t slot = index % fetched.size();
    staging_.wait(slot);
    const Bucket& bucket = buckets[index];
    for (size_t i = 0; i < fetched[slot].size(); ++i) {
      const RuleCall& on_host = fetched[slot][i];
      update(bucket.group, on_host);
      for (size_t k = 0; k < on_host.parameters.size(); ++k) {
        staging_.send_back(bucket.calls.calls()[i].parameters[k], on_host.parameters[k]);
      }
    }
    bucket.calls.copy_back();
  };
  if (swapper_) {
    swapper_->run(sets, work);
  } else {
    for (size_t i = 0; i < buckets.size(); ++i) {
      work(i);
    }
  }
  staging_.finish();
}

int64_t HostUpdate::memory_bytes() const {
  return staging_.memory_bytes() + (swapper_ ? swapper_->memory_bytes() : 0);
}

}  // namespace lockstep::optim
