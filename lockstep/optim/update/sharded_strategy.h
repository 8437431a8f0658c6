// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/optim/flat/flat_parameter_groups.h"
#include "lockstep/optim/flat/sharded_rule_call.h"
#include "lockstep/optim/update/device_steps_and_rates.h"
#include "lockstep/optim/update/update_strategy.h"

namespace lockstep::optim {

/// Updates this rank's shard slices on their device. Updates of fp16 and bf16 slices run in fp32,
/// and are rounded once. A rule that needs full parameters gets all of them, see ShardedRuleCall.
class ShardedStrategy final : public UpdateStrategy {
 public:
  /// `flat_groups` and `steps_and_rates` must outlive this. `ranks`: the ranks that own the other
  /// slices; needed only by rules that need full parameters.
  ShardedStrategy(
      FlatParameterGroups& flat_groups,
      DeviceStepsAndRates& steps_and_rates,
      const std::optional<Group>& ranks)
      : flat_groups_(flat_groups), steps_and_rates_(steps_and_rates), sharding_group_(ranks) {}

  /// Collective if a rule needs full parameters, which must have gradients on all ranks or on none.
  size_t step() override;

 private:
  /// Groups whose rule needs full parameters, in order.
  std::vector<size_t> groups_with_full_updates();
  /// Returns, by [group][full parameter], whether it has a gradient. A group whose rule does not
  /// need full parameters is empty. Collective if any rule does. Throws ConfigError if ranks
  /// disagree.
  std::vector<std::vector<bool>> agree_on_gradients();
  /// Updates in one call for each dtype, in the same order on all ranks. Returns the number of
  /// this rank's slices.
  size_t update_full_parameters(size_t group, const std::vector<bool>& updated);
  void update_slices(size_t group, ShardedRuleCall call);
  void append_slice(size_t group, const FullParameter& full, ShardedRuleCall& call);

  FlatParameterGroups& flat_groups_;
  DeviceStepsAndRates& steps_and_rates_;
  std::optional<Group> sharding_group_;
};

}  // namespace lockstep::optim
