// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/optim/flat/flat_parameter_groups.h"
#include "lockstep/optim/update/device_steps_and_rates.h"
#include "lockstep/optim/update/update_strategy.h"

namespace lockstep::optim {

/// Updates this rank's share of parameters in memory that several ranks share. Bit-exact with one
/// rank that updates everything. Each step has two barriers.
class SharedMemoryStrategy final : public UpdateStrategy {
 public:
  /// `flat_groups` and `steps_and_rates` must outlive this.
  SharedMemoryStrategy(
      FlatParameterGroups& flat_groups,
      DeviceStepsAndRates& steps_and_rates,
      const Group& sharing_group)
      : flat_groups_(flat_groups),
        steps_and_rates_(steps_and_rates),
        sharing_group_(sharing_group) {}

  /// Collective.
  size_t step() override;

 private:
  FlatParameterGroups& flat_groups_;
  DeviceStepsAndRates& steps_and_rates_;
  Group sharing_group_;
};

/// Returns the part of `call` that one of several ranks updates; together they update each element
/// once. For an elementwise rule each rank gets an equal range of every tensor, in full cache lines
/// and vectors, so that results are bit-exact with one rank's. For other rules it gets complete
/// tensors, as evenly as possible. The part may be empty.
RuleCall share_of(const RuleCall& call, bool elementwise, int rank, int size);

}  // namespace lockstep::optim
