// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/flat/flat_parameter_groups.h"
#include "lockstep/optim/flat/rule_calls.h"
#include "lockstep/optim/update/device_steps_and_rates.h"
#include "lockstep/optim/update/update_strategy.h"

namespace lockstep::optim {

/// Updates all parameters on this rank, on their device.
class PlainStrategy final : public UpdateStrategy {
 public:
  /// Both must outlive this.
  PlainStrategy(FlatParameterGroups& flat_groups, DeviceStepsAndRates& steps_and_rates)
      : flat_groups_(flat_groups), steps_and_rates_(steps_and_rates) {}

  size_t step() override;

 private:
  FlatParameterGroups& flat_groups_;
  DeviceStepsAndRates& steps_and_rates_;
};

/// Counts the update on the device if needed, and returns each group's calls for parameters with
/// gradients.
std::vector<RuleCalls> collect_calls(
    FlatParameterGroups& flat_groups, DeviceStepsAndRates& steps_and_rates);

}  // namespace lockstep::optim
