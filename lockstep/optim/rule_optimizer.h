// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat/capturable.h"
#include "lockstep/optim/flat/sharded_rule_call.h"
#include "lockstep/optim/flat/update_rule.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep::optim {

/// Parameters with their own options.
template <typename Options>
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  Options options = {};
};

/// An options struct in torch::optim's form, so that its schedulers can set the learning rate.
template <typename Options>
class GroupOptions final : public CapturableOptions {
 public:
  explicit GroupOptions(Options options) : values(std::move(options)) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptions>(*this);
  }
  double get_lr() const override { return values.lr; }
  void set_lr(const double lr) override {
    values.lr = lr;
    if (device_rate) {
      device_rate->write(lr);
    }
  }
  bool capturable() const override {
    if constexpr (requires { values.capturable; }) {
      return values.capturable;
    } else {
      return false;
    }
  }

  Options values;
};

/// Returns the options of a parameter group. Throws ConfigError for options of another optimizer.
template <typename Options, typename Base>  // torch's options, const or not.
auto& values_of(Base& options, const char* rule) {
  using Wanted =
      std::conditional_t<std::is_const_v<Base>, const GroupOptions<Options>, GroupOptions<Options>>;
  auto* found = dynamic_cast<Wanted*>(&options);
  if (found == nullptr) {
    throw ConfigError(
        "optim",
        std::string("a parameter group has the options of another optimizer; expected ") + rule +
            "'s, in a GroupOptions");
  }
  return found->values;
}

/// A rule as an UpdateRule.
///
/// A rule is a struct with `Options` (an aggregate with an `lr`) and the static functions `traits`,
/// `named`, `check` and `update`. It works on tensors, so it also serves slices of flat buffers.
/// It has further functions if it needs them:
/// - `shape`, if state does not always have the parameter's shape;
/// - `initial`, if state does not begin at 0;
/// - `advance`, if it has scalars;
/// - `update_sharded`, if it is not elementwise, for ranks with slices of parameters;
/// - `needs_full`, if some options make such a rule elementwise.
template <typename Rule>
class RuleAdapter final : public UpdateRule {
 public:
  RuleAdapter() : UpdateRule(Rule::traits()) {}

  NamedOptions named_options(Options& options) const override {
    return Rule::named(values(options));
  }
  void check(const Options& options) const override { Rule::check(values(options)); }
  StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field) const override {
    if constexpr (requires { Rule::shape(values(options), sizes, field); }) {
      return Rule::shape(values(options), sizes, field);
    } else {
      return StateShape::kParameter;
    }
  }
  bool needs_full(const Options& options) const override {
    if constexpr (requires { Rule::needs_full(values(options)); }) {
      return Rule::needs_full(values(options));
    } else {
      return !traits().elementwise;
    }
  }
  double initial(const Options& options, size_t field) const override {
    if constexpr (requires { Rule::initial(values(options), field); }) {
      return Rule::initial(values(options), field);
    } else {
      return 0;
    }
  }
  std::vector<double> advance(
      const Options& options, int64_t step, std::vector<float>& scalars) const override {
    if constexpr (requires { Rule::advance(values(options), step, scalars); }) {
      return Rule::advance(values(options), step, scalars);
    } else {
      return {};
    }
  }
  void update(const Options& options, const RuleCall& call) const override {
    Rule::update(values(options), call);
  }
  void update_sharded(const Options& options, const ShardedRuleCall& call) const override {
    if constexpr (requires { Rule::update_sharded(values(options), call); }) {
      Rule::update_sharded(values(options), call);
    } else {
      LOCKSTEP_ASSERT(
          !needs_full(options), "a rule needs full parameters, and does not gather them");
    }
  }

 private:
  template <typename Base>
  auto& values(Base& options) const {
    return values_of<typename Rule::Options>(options, traits().name);
  }
};

/// The optimizer of a rule (see RuleAdapter): `AdamW optimizer(net->parameters(), {.lr = 3e-4});`
template <typename Rule>
class RuleOptimizer final : public FlatOptimizer {
 public:
  using Options = typename Rule::Options;
  using Group = ParameterGroup<Options>;

  /// Throws ConfigError for invalid options or parameters.
  explicit RuleOptimizer(std::vector<at::Tensor> parameters, Options options = {})
      : RuleOptimizer(std::vector<Group>{{std::move(parameters), std::move(options)}}) {}

  /// Each group is updated with its own options. A later `add_param_group` without options gets the
  /// first group's.
  explicit RuleOptimizer(const std::vector<Group>& groups)
      : FlatOptimizer(
            std::make_shared<RuleAdapter<Rule>>(), torch_groups(groups), defaults_of(groups)) {
    set_options(0, groups);
    adopt_parameters();
  }

  /// Adds a group, now or between steps. torch's own `add_param_group` works too, but only supports
  /// its own options and gives the group the first one's.
  using torch::optim::Optimizer::add_param_group;
  void add_param_group(const Group& group) {
    Rule::check(group.options);
    torch::optim::Optimizer::add_param_group(torch::optim::OptimizerParamGroup(group.parameters));
    set_options(param_groups_.size() - 1, {group});
    adopt_parameters();
  }

  /// Returns the options of one group, to read and change.
  Options& options(size_t group = 0) {
    return values_of<Options>(param_groups_.at(group).options(), traits().name);
  }

 private:
  static std::vector<torch::optim::OptimizerParamGroup> torch_groups(
      const std::vector<Group>& groups) {
    std::vector<torch::optim::OptimizerParamGroup> all;
    for (const Group& group : groups) {
      all.emplace_back(group.parameters);
    }
    return all;
  }

  // torch's constructor drops options of unknown types.
  void set_options(size_t first, const std::vector<Group>& groups) {
    for (size_t i = 0; i < groups.size(); ++i) {
      param_groups_[first + i].set_options(
          std::make_unique<GroupOptions<Options>>(groups[i].options));
    }
  }

  static std::unique_ptr<torch::optim::OptimizerOptions> defaults_of(
      const std::vector<Group>& groups) {
    return std::make_unique<GroupOptions<Options>>(
        groups.empty() ? Options() : groups.front().options);
  }
};

}  // namespace lockstep::optim
