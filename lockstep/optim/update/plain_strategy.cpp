// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update/plain_strategy.h"

namespace lockstep::optim {

size_t PlainStrategy::step() {
  const std::vector<RuleCalls> gathered = collect_calls(flat_groups_, steps_and_rates_);
  size_t count = 0;
  for (size_t group = 0; group < gathered.size(); ++group) {
    for (const RuleCall& call : gathered[group].calls()) {
      count += call.parameters.size();
      flat_groups_.rule()->update(flat_groups_.options(group), call);
    }
    gathered[group].copy_back();
  }
  return count;
}

std::vector<RuleCalls> collect_calls(
    FlatParameterGroups& flat_groups, DeviceStepsAndRates& steps_and_rates) {
  std::vector<RuleCalls> gathered;
  gathered.reserve(flat_groups.group_count());
  for (size_t group = 0; group < flat_groups.group_count(); ++group) {
    steps_and_rates.advance(group);
    gathered.push_back(gather_calls(
        flat_groups,
        group,
        0,
        flat_groups.flat(group).items().size(),
        steps_and_rates.rate(group)));
  }
  return gathered;
}

}  // namespace lockstep::optim
