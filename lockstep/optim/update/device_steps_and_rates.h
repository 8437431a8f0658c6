// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/flat/capturable.h"
#include "lockstep/optim/flat/flat_parameter_groups.h"

namespace lockstep::optim {

/// Step counts and learning rates on the device, for groups whose updates can be captured in a
/// graph (CapturableOptions). Cost: see DeviceSteps and DeviceRate.
class DeviceStepsAndRates {
 public:
  /// `flat_groups` must outlive this.
  explicit DeviceStepsAndRates(FlatParameterGroups& flat_groups) : flat_groups_(flat_groups) {}

  /// Moves the values of each capturable group to the device of its parameters, and those of other
  /// groups to the host. Throws ConfigError for parameters on several devices, `on_host` updates,
  /// and while capturing an update that a graph cannot repeat.
  void place(bool on_host);
  /// Counts one update of each parameter of `group` with a gradient, if the group's step counts are
  /// on the device.
  void advance(size_t group);
  /// Returns the learning rate on the device: 0-d, float32. Undefined: the host's rate is read.
  at::Tensor rate(size_t group) const;
  /// Copies changed learning rates to the device.
  void write_rates();

 private:
  struct Numbers {
    DeviceSteps steps;
    std::shared_ptr<DeviceRate> rate;  ///< Null: the host's rate is read.
  };

  void place_group(size_t group, bool on_host);

  FlatParameterGroups& flat_groups_;
  std::vector<Numbers> groups_;
};

/// Throws ConfigError: `rule` is capturable and updates on the host.
[[noreturn]] void refuse_capture_on_host(const char* rule);

}  // namespace lockstep::optim
