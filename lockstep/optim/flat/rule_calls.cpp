// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/rule_calls.h"

#include <utility>

#include <ATen/ops/empty_strided.h>

#include "lockstep/optim/flat/capturable.h"

namespace lockstep::optim {
namespace {

/// Returns `gradient` in the dtype and memory order of `parameter`: fused kernels walk memory, not
/// indices.
at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (same_strides(gradient, parameter) && gradient.scalar_type() == parameter.scalar_type()) {
    return gradient;
  }
  return at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options())
      .copy_(gradient);
}

}  // namespace

void RuleCalls::add(const FlatParameter& first, const FlatParameter& last, bool new_state) {
  RuleCall& call = call_for(first.parameter, new_state);
  call.steps.push_back(first.step);
  call.factors.push_back(first.factors);
  if (first.device_step.defined()) {
    call.device_steps.push_back(first.device_step);
  }
  for (const FlatParameter* item = &first; item <= &last; ++item) {
    // Autograd must notice that saved tensors have changed, also if another rank changes them.
    item->parameter.unsafeGetTensorImpl()->bump_version();
  }
  if (&first == &last) {
    add_one(call, first);
    return;
  }
  call.parameters.push_back(group_->parameters_between(first, last));
  call.gradients.push_back(group_->gradients_between(first, last));
  for (size_t field = 0; field < field_count_; ++field) {
    call.state[field].push_back(group_->state_between(first, last, field));
  }
}

void RuleCalls::copy_back() const {
  for (const auto& [parameter, updated] : copies_) {
    parameter.copy_(updated);
  }
}

RuleCall& RuleCalls::call_for(const at::Tensor& parameter, bool new_state) {
  for (RuleCall& call : calls_) {
    if (call.first == new_state && call.parameters[0].scalar_type() == parameter.scalar_type() &&
        call.parameters[0].device() == parameter.device()) {
      return call;
    }
  }
  RuleCall& call = calls_.emplace_back();
  call.first = new_state;
  call.device_lr = device_lr_;
  call.state.resize(field_count_);
  return call;
}

void RuleCalls::add_one(RuleCall& call, const FlatParameter& item) {
  at::Tensor parameter = item.parameter;
  if (!parameter.is_non_overlapping_and_dense()) {
    parameter = parameter.contiguous();
    copies_.emplace_back(item.parameter, parameter);
  }
  call.parameters.push_back(parameter);
  call.gradients.push_back(laid_out_like(item.parameter.grad(), parameter));
  for (size_t field = 0; field < field_count_; ++field) {
    call.state[field].push_back(item.state[field]);
  }
}

RuleCalls gather_calls(
    FlatParameterGroups& flat_groups,
    size_t group,
    size_t begin,
    size_t end,
    at::Tensor device_lr) {
  const UpdateRule& rule = *flat_groups.rule();
  const RuleTraits& traits = rule.traits();
  FlatParameterGroup& flat = flat_groups.flat(group);
  RuleCalls calls(flat, traits.fields.size(), std::move(device_lr));
  const FlatParameter* first = nullptr;  // The current run.
  const FlatParameter* last = nullptr;
  bool new_state = false;  // The run's.
  const bool elementwise = !flat_groups.needs_full(group);
  const bool in_graph = begin < end && is_capturing(flat.items()[begin].parameter.device());
  const auto have_equal_steps = [in_graph](const FlatParameter& a, const FlatParameter& b) {
    return a.device_step.defined() ? !in_graph && a.history == b.history : a.step == b.step;
  };
  const auto end_run = [&] {
    if (first != nullptr) {
      calls.add(*first, *last, new_state);
    }
    first = nullptr;
  };
  for (size_t i = begin; i < end; ++i) {
    FlatParameter& item = flat.items()[i];
    if (!item.parameter.grad().defined()) {
      end_run();
      continue;
    }
    ++item.step;
    flat.check_is_shared(item);
    flat.follow_parameter(item);
    const bool created = flat_groups.create_missing_state(group, item);
    item.factors = rule.advance(flat_groups.options(group), item.step, item.scalars);
    const bool joins = first != nullptr && elementwise && created == new_state &&
                       (!traits.counts_steps || have_equal_steps(item, *first)) &&
                       item.factors == first->factors && flat.can_join(*first, item);
    if (!joins) {
      end_run();
      first = &item;
      new_state = created;
    }
    last = &item;
  }
  end_run();
  return calls;
}

}  // namespace lockstep::optim
