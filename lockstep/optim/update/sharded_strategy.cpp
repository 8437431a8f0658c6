// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update/sharded_strategy.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat/capturable.h"
#include "lockstep/optim/flat/rule_calls.h"
#include "lockstep/optim/flat/update_in_fp32.h"

namespace lockstep::optim {

size_t ShardedStrategy::step() {
  const std::vector<std::vector<bool>> updated = agree_on_gradients();
  std::vector<RuleCalls> gathered;
  gathered.reserve(flat_groups_.group_count());
  for (size_t group = 0; group < flat_groups_.group_count(); ++group) {
    steps_and_rates_.advance(group);
    const size_t end = updated[group].empty() ? flat_groups_.flat(group).items().size() : 0;
    gathered.push_back(gather_calls(flat_groups_, group, 0, end, steps_and_rates_.rate(group)));
  }
  size_t count = 0;
  for (size_t group = 0; group < gathered.size(); ++group) {
    for (const RuleCall& call : gathered[group].calls()) {
      count += call.parameters.size();
      update_in_fp32(call, [&](const RuleCall& wide) {
        flat_groups_.rule()->update(flat_groups_.options(group), wide);
      });
    }
    gathered[group].copy_back();
    if (!updated[group].empty()) {
      count += update_full_parameters(group, updated[group]);
    }
  }
  return count;
}

std::vector<size_t> ShardedStrategy::groups_with_full_updates() {
  std::vector<size_t> groups;
  for (size_t group = 0; group < flat_groups_.group_count(); ++group) {
    if (flat_groups_.needs_full(group) && !flat_groups_.full_parameters(group).empty()) {
      groups.push_back(group);
    }
  }
  for (const size_t group : groups) {
    if (is_capturing(flat_groups_.full_parameters(group)[0].options.device())) {
      throw ConfigError(
          "optim",
          fmt::format(
              "{}: this update gathers full parameters from other ranks, which a graph cannot "
              "contain; call step() outside of the capture",
              flat_groups_.rule()->traits().name));
    }
  }
  return groups;
}

std::vector<std::vector<bool>> ShardedStrategy::agree_on_gradients() {
  std::vector<std::vector<bool>> updated(flat_groups_.group_count());
  const std::vector<size_t> groups = groups_with_full_updates();
  if (groups.empty()) {
    return updated;
  }
  int64_t total = 0;
  for (const size_t group : groups) {
    total += static_cast<int64_t>(flat_groups_.full_parameters(group).size());
  }
  const at::Tensor flags = at::zeros({2, total}, at::kByte);
  auto* has = flags.mutable_data_ptr<uint8_t>();
  auto* lacks = has + total;
  int64_t index = 0;
  for (const size_t group : groups) {
    for (const FullParameter& full : flat_groups_.full_parameters(group)) {
      if (full.item) {
        const FlatParameter& item = flat_groups_.flat(group).items()[*full.item];
        (item.parameter.grad().defined() ? has : lacks)[index] = 1;
      }
      ++index;
    }
  }
  sharding_group_->all_reduce(flags, ReduceOp::kMax).wait();
  index = 0;
  for (const size_t group : groups) {
    for (const FullParameter& full : flat_groups_.full_parameters(group)) {
      if (has[index] != 0 && lacks[index] != 0) {
        throw ConfigError(
            "optim",
            fmt::format(
                "{}: a parameter of shape [{}] in group {} has a gradient on some ranks and none "
                "on others that own a slice of it; expected it on all or on none: drop gradients "
                "on all ranks alike",
                flat_groups_.rule()->traits().name,
                fmt::join(full.bounds.sizes, ", "),
                group));
      }
      updated[group].push_back(has[index] != 0);
      ++index;
    }
  }
  return updated;
}

size_t ShardedStrategy::update_full_parameters(size_t group, const std::vector<bool>& updated) {
  const std::vector<FullParameter>& full_parameters = flat_groups_.full_parameters(group);
  std::vector<bool> done(full_parameters.size());
  size_t count = 0;
  for (size_t first = 0; first < full_parameters.size(); ++first) {
    ShardedRuleCall call{
        .ranks = *sharding_group_,
        .full_parameters = {},
        .full_index = {},
        .slices = {},
        .options = full_parameters[first].options};
    call.slices.state.resize(flat_groups_.rule()->traits().fields.size());
    call.slices.device_lr = steps_and_rates_.rate(group);
    for (size_t i = first; i < full_parameters.size(); ++i) {
      if (done[i] || !updated[i] || full_parameters[i].options.dtype() != call.options.dtype()) {
        continue;
      }
      done[i] = true;
      if (full_parameters[i].item) {
        append_slice(group, full_parameters[i], call);
      }
      call.full_parameters.push_back(&full_parameters[i].bounds);
    }
    if (!call.full_parameters.empty()) {
      count += call.slices.parameters.size();
      update_slices(group, std::move(call));
    }
  }
  return count;
}

void ShardedStrategy::append_slice(size_t group, const FullParameter& full, ShardedRuleCall& call) {
  FlatParameter& item = flat_groups_.flat(group).items()[*full.item];
  RuleCall& slices = call.slices;
  ++item.step;
  flat_groups_.flat(group).follow_parameter(item);
  slices.first = flat_groups_.create_missing_state(group, item) || slices.first;
  call.full_index.push_back(call.full_parameters.size());
  slices.parameters.push_back(item.parameter);
  slices.gradients.push_back(item.parameter.grad().to(item.parameter.scalar_type()).contiguous());
  for (size_t field = 0; field < item.state.size(); ++field) {
    slices.state[field].push_back(item.state[field]);
  }
  slices.steps.push_back(item.step);
  if (item.device_step.defined()) {
    slices.device_steps.push_back(item.device_step);
  }
}

void ShardedStrategy::update_slices(size_t group, ShardedRuleCall call) {
  const UpdateRule& rule = *flat_groups_.rule();
  if (call.options.dtype().itemsize() >= 4) {
    rule.update_sharded(flat_groups_.options(group), call);
    return;
  }
  const Fp32Copies copies(call.slices);
  call.slices = copies.wide();
  call.options = call.options.dtype(at::kFloat);
  rule.update_sharded(flat_groups_.options(group), call);
  copies.round_back();
}

}  // namespace lockstep::optim
