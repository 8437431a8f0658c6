// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/optim/flat/parameter_layout.h"
#include "lockstep/optim/update/device_steps_and_rates.h"
#include "lockstep/optim/update/update_strategy.h"

namespace lockstep::optim {

/// Updates this rank's share of parameters in memory that several ranks share. Bit-exact with one
/// rank that updates everything. Each step has two barriers.
class SharedMemoryStrategy final : public UpdateStrategy {
 public:
  /// `layout` and `steps_and_rates` must outlive this.
  SharedMemoryStrategy(
      ParameterLayout& layout, DeviceStepsAndRates& steps_and_rates, const Group& sharing_group)
      : layout_(layout), steps_and_rates_(steps_and_rates), sharing_group_(sharing_group) {}

  /// Collective.
  size_t step() override;

 private:
  ParameterLayout& layout_;
  DeviceStepsAndRates& steps_and_rates_;
  Group sharing_group_;
};

/// Returns the part of `call` that one of several ranks updates; together they update each element
/// once. For an elementwise rule each rank gets an equal range of every tensor, in full cache lines
/// and vectors, so that results are bit-exact with one rank's. For other rules it gets complete
/// tensors, as evenly as possible. The part may be empty.
RuleCall share_of(const RuleCall& call, bool elementwise, int rank, int size);

}  // namespace lockstep::optim
