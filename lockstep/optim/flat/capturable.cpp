// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/capturable.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

constexpr const char* kTooEarly =
    "a graph is being captured before the optimizer's first step, so every replay would create "
    "state again; take a step before the capture, with the parameters on their final device";

/// libtorch has this function since 2.13; before, the device itself refuses an operation that
/// cannot be recorded.
template <typename Stream>
bool is_recording(const Stream& stream) {
  if constexpr (requires { stream.is_capturing(); }) {
    return stream.is_capturing();
  } else {
    return false;
  }
}

void refuse_while_capturing(at::Device device, const char* what) {
  if (is_capturing(device)) {
    throw ConfigError("optim", what);
  }
}

}  // namespace

bool is_capturing(at::Device device) {
  return !device.is_cpu() && !device.is_meta() &&
         is_recording(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void DeviceRate::place(at::Device device) {
  if (tensor_.defined() && tensor_.device() == device) {
    return;
  }
  refuse_while_capturing(device, kTooEarly);
  tensor_ = at::full({}, written_, at::TensorOptions(at::kFloat).device(device));
}

void DeviceRate::write(double rate) {
  if (rate == written_) {
    return;
  }
  refuse_while_capturing(
      tensor_.device(),
      "the learning rate was changed while a graph is being captured, so every replay would set it "
      "again; change it before the capture, or between replays with set_lr() or a schedule");
  const c10::AutoGradMode no_grad(false);
  tensor_.fill_(rate);
  written_ = rate;
}

void DeviceSteps::place(std::vector<FlatParameter>& items, at::Device device) {
  const bool placed =
      counts_.defined() && counts_.device() == device &&
      counts_.numel() == static_cast<int64_t>(items.size()) &&
      std::ranges::all_of(items, [](const auto& item) { return item.device_step.defined(); });
  if (placed) {
    return;
  }
  refuse_while_capturing(device, kTooEarly);
  const at::Tensor counts =
      at::empty({static_cast<int64_t>(items.size())}, at::TensorOptions(at::kFloat).device(device));
  for (size_t i = 0; i < items.size(); ++i) {
    const at::Tensor place = counts.select(0, static_cast<int64_t>(i));
    if (items[i].device_step.defined()) {
      place.copy_(items[i].device_step);
    } else {
      place.fill_(items[i].step);
    }
    items[i].device_step = place;
  }
  counts_ = counts;
}

void DeviceSteps::take_back(std::vector<FlatParameter>& items) {
  if (!counts_.defined()) {
    return;
  }
  for (FlatParameter& item : items) {
    item.step = steps_of(item);
    item.device_step.reset();
    item.history = FlatParameter::kNoHistory;
    item.count_was_set = true;
  }
  counts_.reset();
}

void DeviceSteps::advance(std::vector<FlatParameter>& items) {
  std::map<std::pair<int64_t, int64_t>, int64_t> begun;  // By the old history and the count.
  std::set<int64_t> without_update;
  for (FlatParameter& item : items) {
    if (item.count_was_set) {
      const auto [known, fresh] =
          begun.try_emplace(std::pair(item.history, item.step), next_history_);
      next_history_ += fresh ? 1 : 0;
      item.history = known->second;
      item.count_was_set = false;
    }
    if (!item.parameter.grad().defined()) {
      without_update.insert(item.history);
    }
  }
  if (without_update.empty()) {
    counts_.add_(1);
    return;
  }
  std::map<int64_t, int64_t> split;
  std::vector<at::Tensor> counts;
  for (FlatParameter& item : items) {
    if (!item.parameter.grad().defined()) {
      continue;
    }
    counts.push_back(item.device_step);
    if (without_update.contains(item.history)) {
      const auto [known, fresh] = split.try_emplace(item.history, next_history_);
      next_history_ += fresh ? 1 : 0;
      item.history = known->second;
    }
  }
  if (!counts.empty()) {
    at::_foreach_add_(counts, 1);
  }
}

int64_t steps_of(const FlatParameter& item) {
  return item.device_step.defined() ? static_cast<int64_t>(item.device_step.item<float>())
                                    : item.step;
}

}  // namespace lockstep::optim
