// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/flat_parameter_groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/optim/flat/capturable.h"

namespace lockstep::optim {
namespace {

void check_parameter(const char* rule, const at::Tensor& parameter) {
  const auto refuse = [&](const char* what, const char* remedy) {
    throw ConfigError("optim", fmt::format("{}: a parameter {}; {}", rule, what, remedy));
  };
  if (!parameter.defined()) {
    refuse("is an undefined tensor", "pass the module's parameters()");
  }
  if (!parameter.is_floating_point()) {
    refuse("is not of a real floating type", "remove it, or split it into real parts");
  }
  if (!parameter.is_leaf()) {
    refuse("was computed from others", "pass a leaf, such as a module's parameters()");
  }
}

bool has_state(const FlatParameter& item) {
  return std::ranges::any_of(item.state, [](const auto& field) { return field.defined(); });
}

}  // namespace

std::vector<torch::optim::OptimizerParamGroup> checked_groups(
    const char* rule, std::vector<torch::optim::OptimizerParamGroup> groups) {
  std::set<at::TensorImpl*> elsewhere;
  bool any = false;
  for (auto& group : groups) {
    std::vector<at::Tensor> unique;
    std::set<at::TensorImpl*> here;
    for (const at::Tensor& parameter : group.params()) {
      check_parameter(rule, parameter);
      if (elsewhere.contains(parameter.unsafeGetTensorImpl())) {
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

void FlatParameterGroups::adopt() {
  for (size_t group = 0; group < param_groups_->size(); ++group) {
    if (group == groups_.size()) {
      add_group(group);
    }
    const std::vector<at::Tensor> added = added_parameters(group);
    if (added.empty()) {
      continue;
    }
    check_added(group, added);
    // After all checks, so that a later call refuses the same parameters again.
    for (const at::Tensor& parameter : added) {
      groups_[group].adopted.push_back(parameter.unsafeGetTensorImpl());
    }
    groups_[group].flat.add(added);
    if (rule_->traits().eager_state) {
      for (FlatParameter& item : groups_[group].flat.items()) {
        create_missing_state(group, item);
      }
    }
  }
}

void FlatParameterGroups::add_group(size_t group) {
  rule_->check(options(group));
  groups_.push_back(
      {.flat = FlatParameterGroup(rule_->traits().fields.size()),
       .adopted = {},
       .full_parameters = {}});
  if (sharing_group_) {
    groups_.back().flat.share(*sharing_group_);
  }
}

std::vector<at::Tensor> FlatParameterGroups::added_parameters(size_t group) const {
  const std::vector<at::TensorImpl*>& adopted = groups_[group].adopted;
  const std::vector<at::Tensor>& parameters = (*param_groups_)[group].params();
  const bool kept =
      adopted.size() <= parameters.size() &&
      std::equal(
          adopted.begin(), adopted.end(), parameters.begin(), [](const auto* a, const auto& b) {
            return a == b.unsafeGetTensorImpl();
          });
  if (!kept) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{}: parameters were removed from group {}; build a new optimizer without them",
            rule_name(),
            group));
  }
  std::vector<at::Tensor> added;
  for (size_t i = adopted.size(); i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    at::TensorImpl* impl = parameter.unsafeGetTensorImpl();
    check_parameter(rule_name(), parameter);
    const bool is_adopted = std::ranges::any_of(groups_, [impl](const LaidOutGroup& other) {
      return std::ranges::find(other.adopted, impl) != other.adopted.end();
    });
    const bool is_repeated = std::ranges::any_of(
        added, [&](const at::Tensor& other) { return other.is_same(parameter); });
    if (is_adopted || is_repeated) {
      throw ConfigError(
          "optim", fmt::format("{}: a parameter was added a second time", rule_name()));
    }
    added.push_back(parameter);
  }
  return added;
}

void FlatParameterGroups::check_added(size_t group, const std::vector<at::Tensor>& added) {
  if (has_shard_slices_) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{}: a parameter was added to a sharded optimizer, so each rank would update it in "
            "full with its own gradient; pass it to the optimizer, unfrozen, before prepare()",
            rule_name()));
  }
  for (const at::Tensor& parameter : added) {
    for (size_t field = 0; field < rule_->traits().fields.size(); ++field) {
      rule_->shape(options(group), parameter.sizes(), field);
    }
  }
}

// Shared parameters must not move; the next step reports one that did.
bool FlatParameterGroups::has_moved_parameters() const {
  return !sharing_group_ && std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return !group.flat.all_in_buffers();
  });
}

void FlatParameterGroups::follow_parameters() {
  const c10::AutoGradMode no_grad(false);
  adopt();
  for (size_t group = 0; group < groups_.size(); ++group) {
    FlatParameterGroup& flat = groups_[group].flat;
    if (flat.all_in_buffers() || sharing_group_) {
      continue;
    }
    const std::vector<FlatParameter> before = flat.items();
    flat = FlatParameterGroup(rule_->traits().fields.size());
    flat.add((*param_groups_)[group].params());
    for (const FlatParameter& item : before) {
      set_state(
          item.parameter, {.step = steps_of(item), .fields = item.state, .scalars = item.scalars});
    }
  }
}

void FlatParameterGroups::share(const Group& ranks) {
  if (has_shard_slices_) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{}: share() cannot be combined with update_shards(); expected full parameters",
            rule_name()));
  }
  adopt();
  for (LaidOutGroup& group : groups_) {
    group.flat.share(ranks);
  }
  sharing_group_ = ranks;
}

void FlatParameterGroups::use_shard_slices(
    const std::vector<std::vector<BufferSlices>>& slices,
    const std::optional<Group>& ranks,
    bool fp32_state) {
  for (const LaidOutGroup& group : groups_) {
    for (const FlatParameter& item : group.flat.items()) {
      if (item.step > 0 || sharing_group_) {
        throw ConfigError(
            "optim",
            fmt::format(
                "{} already has state, or shares it; prepare() it before its first step, and load "
                "checkpoints "
                "afterwards",
                rule_name()));
      }
    }
  }
  for (size_t index = 0; index < groups_.size(); ++index) {
    LaidOutGroup& group = groups_[index];
    std::vector<at::Tensor>& parameters = (*param_groups_)[index].params();
    parameters.clear();
    group = {
        .flat = FlatParameterGroup(rule_->traits().fields.size(), fp32_state),
        .adopted = {},
        .full_parameters = {}};
    for (const BufferSlices& each : slices[index]) {
      group.flat.add_in_place(each.buffer, each.tensors, each.file);
      if (ranks) {
        add_full_parameters(index, each, *ranks);
      }
      for (const at::Tensor& slice : each.tensors) {
        parameters.push_back(slice);
        group.adopted.push_back(slice.unsafeGetTensorImpl());
      }
    }
  }
  has_shard_slices_ = true;
}

void FlatParameterGroups::add_full_parameters(
    size_t group, const BufferSlices& slices, const Group& ranks) {
  std::vector<FlatParameter>& items = groups_[group].flat.items();
  size_t next = items.size() - slices.tensors.size();
  for (const flat::ShardBounds& bounds : slices.full_parameters) {
    if (bounds.numel() == 0) {
      continue;
    }
    FullParameter& full = groups_[group].full_parameters.emplace_back(
        FullParameter{bounds, slices.buffer.options().requires_grad(false), std::nullopt});
    if (bounds.length(ranks.rank()) > 0) {
      full.item = next;
      items.at(next).full_sizes = bounds.sizes;
      ++next;
    }
  }
  LOCKSTEP_ASSERT(next == items.size(), "a shard slice belongs to no parameter");
}

void FlatParameterGroups::check_gradients() const {
  for (const LaidOutGroup& group : groups_) {
    for (const FlatParameter& item : group.flat.items()) {
      if (item.parameter.grad().defined()) {
        check_sizes(item);
      }
    }
  }
}

void FlatParameterGroups::check_sizes(const FlatParameter& item) const {
  if (item.parameter.sizes() != item.sizes) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{}: a parameter was resized from [{}] to [{}]; build a new optimizer",
            rule_name(),
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
        fmt::format("{} got a sparse gradient; build its layer with sparse=false", rule_name()));
  }
  if (gradient.sizes() != item.sizes) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{}: a gradient does not fit its parameter; got [{}], expected [{}]; clear it with "
            "zero_grad()",
            rule_name(),
            fmt::join(gradient.sizes(), ", "),
            fmt::join(item.sizes, ", ")));
  }
}

bool FlatParameterGroups::create_missing_state(size_t group, FlatParameter& item) {
  bool created = false;
  for (size_t field = 0; field < item.state.size(); ++field) {
    if (item.state[field].defined()) {
      continue;
    }
    const StateShape wanted = rule_->shape(options(group), item.full_sizes, field);
    if (wanted == StateShape::kNone) {
      continue;
    }
    if (is_capturing(item.parameter.device())) {
      throw ConfigError(
          "optim",
          fmt::format(
              "{}: a parameter got its first gradient while a graph is being captured, so every "
              "replay would create its state again; take a step with it before",
              rule_name()));
    }
    flat(group).place_state(item, field, wanted).fill_(rule_->initial(options(group), field));
    created = true;
  }
  return created;
}

void FlatParameterGroups::create_eager_state() {
  for (size_t group = 0; group < groups_.size() && rule_->traits().eager_state; ++group) {
    for (FlatParameter& item : flat(group).items()) {
      create_missing_state(group, item);
    }
    for (size_t buffer = 0; buffer < flat(group).buffer_count(); ++buffer) {
      flat(group).release_file_pages(buffer);
    }
  }
}

void FlatParameterGroups::complete_state() {
  const c10::AutoGradMode no_grad(false);
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (FlatParameter& item : flat(group).items()) {
      if (has_state(item)) {
        check_sizes(item);
        create_missing_state(group, item);
      }
    }
  }
}

FlatParameterGroups::Position FlatParameterGroups::find(const at::Tensor& parameter) const {
  for (size_t group = 0; group < groups_.size(); ++group) {
    const std::vector<FlatParameter>& items = flat(group).items();
    for (size_t item = 0; item < items.size(); ++item) {
      if (items[item].parameter.is_same(parameter)) {
        return {group, item};
      }
    }
  }
  throw ConfigError(
      "optim",
      fmt::format(
          "{}: the parameter is not in this optimizer; expected one of its parameter groups",
          rule_name()));
}

const std::vector<int64_t>& FlatParameterGroups::full_sizes(const at::Tensor& parameter) const {
  const Position position = find(parameter);
  return flat(position.group).items()[position.item].full_sizes;
}

ParameterState FlatParameterGroups::state_of(const at::Tensor& parameter) const {
  const Position position = find(parameter);
  const FlatParameter& item = flat(position.group).items()[position.item];
  return {.step = steps_of(item), .fields = item.state, .scalars = item.scalars};
}

void FlatParameterGroups::set_state(const at::Tensor& parameter, const ParameterState& state) {
  const c10::AutoGradMode no_grad(false);
  const auto [group, index] = find(parameter);
  FlatParameter& item = flat(group).items()[index];
  check_sizes(item);
  item.step = state.step;
  item.count_was_set = true;
  item.scalars = state.scalars;
  if (item.device_step.defined()) {
    item.device_step.fill_(state.step);
  }
  for (size_t field = 0; field < item.state.size(); ++field) {
    if (field >= state.fields.size() || !state.fields[field].defined()) {
      item.state[field].reset();
      continue;
    }
    const bool has_parameter_shape = state.fields[field].sizes() == parameter.sizes();
    StateShape shape = rule_->shape(options(group), item.full_sizes, field);
    if (shape == StateShape::kNone && has_parameter_shape) {
      shape = StateShape::kParameter;
    }
    flat::copy_values(flat(group).place_state(item, field, shape), state.fields[field]);
  }
}

}  // namespace lockstep::optim
