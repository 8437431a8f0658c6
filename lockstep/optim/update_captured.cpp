// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat/capturable.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep::optim {

void FlatOptimizer::place_numbers(size_t index) {
  std::vector<FlatParameter>& items = groups_[index].items();
  auto* options = dynamic_cast<CapturableOptions*>(&param_groups_[index].options());
  if (items.empty() || options == nullptr) {
    return;
  }
  const auto on_device = std::ranges::find_if(
      items, [](const FlatParameter& item) { return !item.parameter.is_cpu(); });
  const at::Device device =
      on_device == items.end() ? at::Device(at::kCPU) : on_device->parameter.device();
  if (!options->capturable() || device.is_cpu()) {
    if (is_capturing(device)) {
      throw ConfigError(
          "optim",
          fmt::format(
              "{}: a graph is being captured, and would repeat this step's numbers for ever; "
              "construct the optimizer with .capturable = true (Adafactor, ASGD, Muon and NAdam "
              "have "
              "none: use another)",
              traits_.name));
    }
    device_steps_[index].take_back(items);
    device_rates_[index].reset();
    options->device_rate.reset();
    return;
  }
  for (const FlatParameter& item : items) {
    if (item.parameter.device() != device) {
      throw ConfigError(
          "optim",
          fmt::format(
              "{}: parameters of a capturable group lie on {} and {}; give each device a group",
              traits_.name,
              device.str(),
              item.parameter.device().str()));
    }
  }
  if (host_update_) {
    refuse_to_capture_offloaded();
  }
  if (traits_.counts_steps) {
    device_steps_[index].place(items, device);
  }
  const std::shared_ptr<DeviceRate> rate =
      device_rates_[index] ? device_rates_[index] : std::make_shared<DeviceRate>();
  rate->place(device);
  rate->write(options->get_lr());
  device_rates_[index] = rate;
  options->device_rate = rate;
}

void FlatOptimizer::write_rates() {
  for (size_t index = 0; index < device_rates_.size(); ++index) {
    if (device_rates_[index]) {
      device_rates_[index]->write(param_groups_[index].options().get_lr());
    }
  }
}

}  // namespace lockstep::optim
