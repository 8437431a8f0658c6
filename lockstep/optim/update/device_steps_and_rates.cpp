// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update/device_steps_and_rates.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

/// Returns the device of the first parameter off the CPU, if any; else the CPU.
at::Device device_of(const std::vector<FlatParameter>& items) {
  const auto found = std::ranges::find_if(
      items, [](const FlatParameter& item) { return !item.parameter.is_cpu(); });
  return found == items.end() ? at::Device(at::kCPU) : found->parameter.device();
}

void refuse_to_capture(const char* rule) {
  throw ConfigError(
      "optim",
      fmt::format(
          "{}: the graph being captured would repeat this step's count and learning rate in every "
          "replay; construct the optimizer with .capturable = true (not supported by Adafactor, "
          "ASGD, Muon and NAdam)",
          rule));
}

void check_one_device(
    const char* rule, const std::vector<FlatParameter>& items, at::Device device) {
  for (const FlatParameter& item : items) {
    if (item.parameter.device() != device) {
      throw ConfigError(
          "optim",
          fmt::format(
              "{}: parameters of a capturable group are on {} and {}; give each device a group",
              rule,
              device.str(),
              item.parameter.device().str()));
    }
  }
}

}  // namespace

void DeviceStepsAndRates::place(bool on_host) {
  groups_.resize(flat_groups_.group_count());
  for (size_t group = 0; group < groups_.size(); ++group) {
    place_group(group, on_host);
  }
}

void DeviceStepsAndRates::place_group(size_t group, bool on_host) {
  std::vector<FlatParameter>& items = flat_groups_.flat(group).items();
  auto* options = dynamic_cast<CapturableOptions*>(&flat_groups_.options(group));
  if (items.empty() || options == nullptr) {
    return;
  }
  const RuleTraits& traits = flat_groups_.rule()->traits();
  Numbers& numbers = groups_[group];
  const at::Device device = device_of(items);
  if (!options->capturable() || device.is_cpu()) {
    if (is_capturing(device)) {
      refuse_to_capture(traits.name);
    }
    numbers.steps.take_back(items);
    numbers.rate.reset();
    options->device_rate.reset();
    return;
  }
  check_one_device(traits.name, items, device);
  if (on_host) {
    refuse_capture_on_host(traits.name);
  }
  if (traits.counts_steps) {
    numbers.steps.place(items, device);
  }
  const auto rate = numbers.rate ? numbers.rate : std::make_shared<DeviceRate>();
  rate->place(device);
  rate->write(options->get_lr());
  numbers.rate = rate;
  options->device_rate = rate;
}

void DeviceStepsAndRates::advance(size_t group) {
  if (groups_[group].rate && flat_groups_.rule()->traits().counts_steps) {
    groups_[group].steps.advance(flat_groups_.flat(group).items());
  }
}

at::Tensor DeviceStepsAndRates::rate(size_t group) const {
  return groups_[group].rate ? groups_[group].rate->tensor() : at::Tensor();
}

void DeviceStepsAndRates::write_rates() {
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].rate) {
      groups_[group].rate->write(flat_groups_.options(group).get_lr());
    }
  }
}

void refuse_capture_on_host(const char* rule) {
  throw ConfigError(
      "offload",
      fmt::format(
          "{}: capturable cannot be combined with offload_optimizer, which updates on the host; "
          "remove one of them",
          rule));
}

}  // namespace lockstep::optim
