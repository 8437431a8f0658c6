// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/flat/flat_parameter_group.h"
#include "lockstep/optim/flat/flat_parameter_groups.h"
#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// Lists the calls of an update rule. A call has runs of neighbouring parameters, each as one
/// tensor.
class RuleCalls {
 public:
  /// `group` must outlive this. `device_lr`: see RuleCall.
  RuleCalls(const FlatParameterGroup& group, size_t field_count, at::Tensor device_lr = {})
      : group_(&group), field_count_(field_count), device_lr_(std::move(device_lr)) {}

  /// Adds the run from `first` to `last`, which may be the same. `new_state`: its state is new.
  void add(const FlatParameter& first, const FlatParameter& last, bool new_state);

  const std::vector<RuleCall>& calls() const { return calls_; }

  /// Copies results from dense copies back to their parameters.
  void copy_back() const;

 private:
  RuleCall& call_for(const at::Tensor& parameter, bool new_state);
  void add_one(RuleCall& call, const FlatParameter& item);

  const FlatParameterGroup* group_;
  size_t field_count_;
  at::Tensor device_lr_;
  std::vector<RuleCall> calls_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

/// Returns the calls for the parameters of `group`, items `begin` to `end`, that have gradients.
/// Counts an update of each, moves its state to its device, and creates missing state.
/// `device_lr`: see RuleCall.
RuleCalls gather_calls(
    FlatParameterGroups& flat_groups,
    size_t group,
    size_t begin,
    size_t end,
    at::Tensor device_lr = {});

}  // namespace lockstep::optim
