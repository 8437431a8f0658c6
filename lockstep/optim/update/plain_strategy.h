// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/flat/parameter_layout.h"
#include "lockstep/optim/flat/update_batches.h"
#include "lockstep/optim/update/device_numbers.h"
#include "lockstep/optim/update/update_strategy.h"

namespace lockstep::optim {

/// Updates all parameters on this rank, on their device.
class PlainStrategy final : public UpdateStrategy {
 public:
  /// Both must outlive this.
  PlainStrategy(ParameterLayout& layout, DeviceNumbers& numbers)
      : layout_(layout), numbers_(numbers) {}

  size_t step() override;

 private:
  ParameterLayout& layout_;
  DeviceNumbers& numbers_;
};

/// Returns the batches of each group's parameters with gradients, after counting the update on the
/// device, if it counts.
std::vector<UpdateBatches> gather_all(ParameterLayout& layout, DeviceNumbers& numbers);

}  // namespace lockstep::optim
