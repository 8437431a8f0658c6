// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/flat/parameter_layout.h"
#include "lockstep/optim/flat/rule_calls.h"
#include "lockstep/optim/update/device_steps_and_rates.h"
#include "lockstep/optim/update/update_strategy.h"

namespace lockstep::optim {

/// Updates all parameters on this rank, on their device.
class PlainStrategy final : public UpdateStrategy {
 public:
  /// Both must outlive this.
  PlainStrategy(ParameterLayout& layout, DeviceStepsAndRates& steps_and_rates)
      : layout_(layout), steps_and_rates_(steps_and_rates) {}

  size_t step() override;

 private:
  ParameterLayout& layout_;
  DeviceStepsAndRates& steps_and_rates_;
};

/// Counts the update on the device if needed, and returns each group's calls for parameters with
/// gradients.
std::vector<RuleCalls> collect_calls(ParameterLayout& layout, DeviceStepsAndRates& steps_and_rates);

}  // namespace lockstep::optim
