// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat_optimizer.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/optim/update/share_of.h"
#include "lockstep/optim/flat/update_batches.h"
#include "lockstep/optim/flat/update_in_fp32.h"

namespace lockstep::optim {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

void check_parameter(const char* rule, const at::Tensor& parameter) {
  const auto refuse = [&](const char* what, const char* remedy) {
    throw ConfigError("optim", fmt::format("{}: a parameter {}; {}", rule, what, remedy));
  };
  if (!parameter.defined()) {
    refuse("is an undefined tensor", "pass the module's parameters()");
  }
  if (!parameter.is_floating_point()) {
    refuse("is not of a real floating type", "leave it out, or split it into real parts");
  }
  if (!parameter.is_leaf()) {
    refuse("was computed from others", "pass a leaf, such as a module's parameters()");
  }
}

/// The same groups, each parameter once.
Groups checked(const char* rule, Groups groups) {
  std::set<at::TensorImpl*> elsewhere;
  bool any = false;
  for (auto& group : groups) {
    std::vector<at::Tensor> unique;
    std::set<at::TensorImpl*> here;
    for (const at::Tensor& parameter : group.params()) {
      check_parameter(rule, parameter);
      if (elsewhere.count(parameter.unsafeGetTensorImpl()) > 0) {
        throw ConfigError(
            "optim", fmt::format("{}: a parameter is in two groups; expected one", rule));
      }
      if (here.insert(parameter.unsafeGetTensorImpl()).second) {
        unique.push_back(parameter);
      }
    }
    elsewhere.merge(here);
    any = any || !unique.empty();
    group.params() = std::move(unique);
  }
  if (!any) {
    throw ConfigError(
        "optim", fmt::format("{}: got no parameters; pass the module's parameters()", rule));
  }
  return groups;
}

}  // namespace

FlatOptimizer::FlatOptimizer(
    RuleTraits traits, Groups groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults)
    : torch::optim::Optimizer(checked(traits.name, std::move(groups)), std::move(defaults)),
      traits_(std::move(traits)) {}

void FlatOptimizer::set_call_guard(std::function<void(const char* call)> guard) {
  call_guard_ = std::move(guard);
}

void FlatOptimizer::zero_grad(bool set_to_none) {
  if (call_guard_) {
    call_guard_("zero_grad()");
  }
  torch::optim::Optimizer::zero_grad(set_to_none);
}

at::Tensor FlatOptimizer::step(LossClosure closure) {
  if (call_guard_) {
    call_guard_("step()");
  }
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_grad(true);
    loss = closure();
  }
  const c10::AutoGradMode no_grad(false);
  adopt_parameters();
  for (const FlatGroup& group : groups_) {
    for (const FlatParameter& item : group.items()) {
      if (item.parameter.grad().defined()) {
        check_sizes(item);
      }
    }
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    place_numbers(group);
  }
  if (host_update_) {
    update_by_buckets();
    return loss;
  }
  const std::vector<std::vector<bool>> updated_wholes = agree_on_gradients();
  std::vector<UpdateBatches> gatherings;
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (device_rates_[group] && traits_.counts_steps) {
      device_steps_[group].advance(groups_[group].items());
    }
    const bool divided = !updated_wholes[group].empty();
    gatherings.push_back(gather(group, 0, divided ? 0 : groups_[group].items().size()));
  }
  if (sharers_) {
    sharers_->barrier();  // All state is made, and nobody computes with the old values any more.
  }
  run_count_ = 0;
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (const Batch& batch : gatherings[group].batches()) {
      update_share(param_groups_[group].options(), batch);
    }
    gatherings[group].copy_back();
    if (!updated_wholes[group].empty()) {
      update_wholes(group, updated_wholes[group]);
    }
  }
  if (sharers_) {
    sharers_->barrier();
  }
  return loss;
}

void FlatOptimizer::update_share(
    const torch::optim::OptimizerOptions& options, const Batch& batch) {
  if (!sharers_) {
    update_slice(options, batch);
    return;
  }
  const Batch share = share_of(batch, !needs_full(options), sharers_->rank(), sharers_->size());
  run_count_ += share.parameters.size();
  if (!share.parameters.empty()) {
    update(options, share);
  }
}

void FlatOptimizer::update_slice(
    const torch::optim::OptimizerOptions& options, const Batch& batch) {
  run_count_ += batch.parameters.size();
  if (has_slices_) {
    update_in_fp32(batch, [&](const Batch& wide) { update(options, wide); });
  } else {
    update(options, batch);
  }
}

void FlatOptimizer::share(const Group& group) {
  if (group.size() == 1) {
    return;
  }
  adopt_parameters();
  for (FlatGroup& flat : groups_) {
    flat.share(group);
  }
  sharers_ = group;
}

void FlatOptimizer::follow_parameters() {
  const c10::AutoGradMode no_grad(false);
  adopt_parameters();
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].all_at_home() || sharers_) {
      continue;  // What is shared must stay where it is; the next step says so.
    }
    const std::vector<FlatParameter> before = groups_[group].items();
    groups_[group] = FlatGroup(traits_.fields.size());
    groups_[group].add(param_groups_[group].params());
    for (const FlatParameter& item : before) {
      set_state(
          item.parameter, {.step = steps_of(item), .fields = item.state, .scalars = item.scalars});
    }
  }
}

void FlatOptimizer::save(torch::serialize::OutputArchive& /*archive*/) const {
  throw ConfigError(
      "optim",
      "torch::save knows no parameter names; expected Accelerator::save_state, or "
      "optimizer_tensors() and optimizer_settings() for a file of your own");
}

void FlatOptimizer::load(torch::serialize::InputArchive& /*archive*/) {
  throw ConfigError(
      "optim",
      "torch::load knows no parameter names; expected Accelerator::load_state, or "
      "check_optimizer() for a file of your own");
}

void FlatOptimizer::adopt_parameters() {
  for (size_t index = 0; index < param_groups_.size(); ++index) {
    const auto& group = param_groups_[index];
    if (index == groups_.size()) {
      check(group.options());
      groups_.emplace_back(traits_.fields.size());
      device_steps_.emplace_back();
      device_rates_.emplace_back();
      if (sharers_) {
        groups_.back().share(*sharers_);
      }
      known_.emplace_back();
    }
    std::vector<at::TensorImpl*>& known = known_[index];
    const std::vector<at::Tensor>& parameters = group.params();
    const bool kept =
        known.size() <= parameters.size() &&
        std::equal(
            known.begin(), known.end(), parameters.begin(), [](const auto* a, const auto& b) {
              return a == b.unsafeGetTensorImpl();
            });
    if (!kept) {
      throw ConfigError(
          "optim",
          fmt::format(
              "{}: parameters were taken out of group {}; build a new optimizer without them",
              traits_.name,
              index));
    }
    std::vector<at::Tensor> added;
    for (size_t i = known.size(); i < parameters.size(); ++i) {
      const at::Tensor& parameter = parameters[i];
      at::TensorImpl* impl = parameter.unsafeGetTensorImpl();
      check_parameter(traits_.name, parameter);
      const bool twice = std::any_of(known_.begin(), known_.end(), [impl](const auto& group_known) {
        return std::find(group_known.begin(), group_known.end(), impl) != group_known.end();
      });
      const bool again = std::any_of(added.begin(), added.end(), [impl](const at::Tensor& other) {
        return other.unsafeGetTensorImpl() == impl;
      });
      if (twice || again) {
        throw ConfigError(
            "optim", fmt::format("{}: a parameter was added a second time", traits_.name));
      }
      added.push_back(parameter);
    }
    if (added.empty()) {
      continue;
    }
    check_added(index, added);
    for (const at::Tensor& parameter : added) {  // Not before: who goes on is told again.
      known.push_back(parameter.unsafeGetTensorImpl());
    }
    groups_[index].add(added);
    if (traits_.eager_state) {
      for (FlatParameter& item : groups_[index].items()) {
        create_missing_state(index, item);
      }
    }
  }
}

bool FlatOptimizer::create_missing_state(size_t group, FlatParameter& item) {
  const torch::optim::OptimizerOptions& options = param_groups_[group].options();
  bool created = false;
  for (size_t field = 0; field < item.state.size(); ++field) {
    if (item.state[field].defined()) {
      continue;
    }
    const StateShape wanted = shape(options, item.whole_sizes(), field);
    if (wanted != StateShape::kNone) {
      if (is_capturing(item.parameter.device())) {
        throw ConfigError(
            "optim",
            fmt::format(
                "{}: a parameter got its first gradient while a graph is being captured, which "
                "would create its state again in every replay; take a step with it before",
                traits_.name));
      }
      groups_[group].place_state(item, field, wanted).fill_(initial(options, field));
      created = true;
    }
  }
  return created;
}

void FlatOptimizer::complete_state() {
  const c10::AutoGradMode no_grad(false);
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (FlatParameter& item : groups_[group].items()) {
      const bool any = std::any_of(
          item.state.begin(), item.state.end(), [](const auto& field) { return field.defined(); });
      if (any) {
        check_sizes(item);
        create_missing_state(group, item);
      }
    }
  }
}

void FlatOptimizer::check_sizes(const FlatParameter& item) const {
  if (item.parameter.sizes() != item.sizes) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{}: a parameter was resized from [{}] to [{}]; build a new optimizer",
            traits_.name,
            fmt::join(item.sizes, ", "),
            fmt::join(item.parameter.sizes(), ", ")));
  }
  const at::Tensor& gradient = item.parameter.grad();
  if (!gradient.defined()) {
    return;
  }
  if (gradient.layout() != at::kStrided) {
    throw ConfigError(
        "optim",
        fmt::format("{} got a sparse gradient; build its layer with sparse=false", traits_.name));
  }
  if (gradient.sizes() != item.sizes) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{}: a gradient does not fit its parameter; got [{}], expected [{}]; clear it with "
            "zero_grad()",
            traits_.name,
            fmt::join(gradient.sizes(), ", "),
            fmt::join(item.sizes, ", ")));
  }
}

UpdateBatches FlatOptimizer::gather(size_t group_index, size_t begin, size_t end) {
  FlatGroup& group = groups_[group_index];
  const std::shared_ptr<DeviceRate>& rate = device_rates_[group_index];
  UpdateBatches batches_to_update(
      group, traits_.fields.size(), rate ? rate->tensor() : at::Tensor());
  const FlatParameter* first = nullptr;  // The run that is being gathered.
  const FlatParameter* last = nullptr;
  bool fresh = false;  // Whether its state is new.
  const bool elementwise = !group_needs_full(group_index);
  const bool in_graph = begin < end && is_capturing(group.items()[begin].parameter.device());
  const auto as_often = [in_graph](const FlatParameter& a, const FlatParameter& b) {
    return a.device_step.defined() ? !in_graph && a.history == b.history : a.step == b.step;
  };
  const auto end_run = [&] {
    if (first != nullptr) {
      batches_to_update.add(*first, *last, fresh);
    }
    first = nullptr;
  };
  for (size_t i = begin; i < end; ++i) {
    FlatParameter& item = group.items()[i];
    if (!item.parameter.grad().defined()) {
      end_run();
      continue;
    }
    ++item.step;
    group.check_place(item);
    group.follow_parameter(item);
    const bool created = create_missing_state(group_index, item);
    item.factors = advance(param_groups_[group_index].options(), item.step, item.scalars);
    const bool joins = first != nullptr && elementwise && created == fresh &&
                       (!traits_.counts_steps || as_often(item, *first)) &&
                       item.factors == first->factors && group.lie_alike(*first, item);
    if (!joins) {
      end_run();
      first = &item;
      fresh = created;
    }
    last = &item;
  }
  end_run();
  return batches_to_update;
}

FlatOptimizer::Place FlatOptimizer::place_of(const at::Tensor& parameter) const {
  for (size_t group = 0; group < groups_.size(); ++group) {
    const std::vector<FlatParameter>& items = groups_[group].items();
    for (size_t item = 0; item < items.size(); ++item) {
      if (items[item].parameter.is_same(parameter)) {
        return {group, item};
      }
    }
  }
  throw ConfigError(
      "optim", fmt::format("{}: asked for a parameter it does not have", traits_.name));
}

FlatOptimizer::ParameterState FlatOptimizer::state_of(const at::Tensor& parameter) const {
  const Place place = place_of(parameter);
  const FlatParameter& item = groups_[place.group].items()[place.item];
  return {.step = steps_of(item), .fields = item.state, .scalars = item.scalars};
}

void FlatOptimizer::set_state(const at::Tensor& parameter, const ParameterState& state) {
  const c10::AutoGradMode no_grad(false);
  const Place place = place_of(parameter);
  FlatParameter& item = groups_[place.group].items()[place.item];
  check_sizes(item);
  if (early_) {
    early_->forget();
  }
  item.step = state.step;
  item.count_was_set = true;
  item.scalars = state.scalars;
  if (item.device_step.defined()) {
    item.device_step.fill_(state.step);
  }
  for (size_t field = 0; field < item.state.size(); ++field) {
    const bool given = field < state.fields.size() && state.fields[field].defined();
    if (!given) {
      item.state[field].reset();
      continue;
    }
    const bool shaped = state.fields[field].sizes() == parameter.sizes();
    const StateShape wanted =
        shape(param_groups_[place.group].options(), item.whole_sizes(), field);
    const StateShape placed =
        wanted == StateShape::kNone && shaped ? StateShape::kParameter : wanted;
    flat::copy_values(groups_[place.group].place_state(item, field, placed), state.fields[field]);
  }
}

}  // namespace lockstep::optim
