// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/elementwise_optimizer.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <variant>

#include <torch/csrc/autograd/python_variable.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep::python {
namespace {

/// The options of one group that a checkpoint keeps. Python's param_groups have the others.
struct ElementwiseOptions final : torch::optim::OptimizerOptions {
  struct Named {
    std::string name;
    std::variant<double, bool, std::pair<double, double>> value;
  };

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<ElementwiseOptions>(*this);
  }
  double get_lr() const override { return lr; }
  void set_lr(const double rate) override { lr = rate; }

  double lr = 0;
  size_t group = 0;
  std::deque<Named> others;  // A deque, so that pointers to its elements stay valid.
};

std::pair<double, double> pair_of(const py::sequence& sequence) {
  return {sequence[0].cast<double>(), sequence[1].cast<double>()};
}

std::unique_ptr<ElementwiseOptions> options_of(const py::dict& given, size_t group) {
  auto options = std::make_unique<ElementwiseOptions>();
  options->group = group;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (name == "lr") {
      options->lr = value.cast<double>();
    } else if (py::isinstance<py::bool_>(value)) {
      options->others.push_back({name, value.cast<bool>()});
    } else if (py::isinstance<py::sequence>(value)) {
      options->others.push_back({name, pair_of(py::reinterpret_borrow<py::sequence>(value))});
    } else {
      options->others.push_back({name, value.cast<double>()});
    }
  }
  return options;
}

template <typename Base>
auto& checked(Base& options, const std::string& name) {
  using Wanted =
      std::conditional_t<std::is_const_v<Base>, const ElementwiseOptions, ElementwiseOptions>;
  auto* const found = dynamic_cast<Wanted*>(&options);
  if (found == nullptr) {
    throw ConfigError(
        "optim", "a parameter group has the options of another optimizer; expected " + name + "'s");
  }
  return *found;
}

/// Owns the names that RuleTraits points to; a base, so that they exist before UpdateRule.
struct OwnedNames {
  explicit OwnedNames(ElementwiseClass the_class) : described(std::move(the_class)) {}
  ElementwiseClass described;
};

/// An update that Python computes, of any range of elements.
class PythonRule final : private OwnedNames, public optim::UpdateRule {
 public:
  PythonRule(ElementwiseClass the_class, py::object update)
      : OwnedNames(std::move(the_class)),
        UpdateRule(traits_of(described)),
        update_(std::move(update)) {}

  optim::NamedOptions named_options(Options& options) const override {
    ElementwiseOptions& ours = checked(options, described.name);
    optim::NamedOptions named = {{"lr", &ours.lr}};
    for (ElementwiseOptions::Named& other : ours.others) {
      std::visit([&](auto& value) { named.push_back({other.name.c_str(), &value}); }, other.value);
    }
    return named;
  }
  void check(const Options& options) const override { checked(options, described.name); }
  optim::StateShape shape(
      const Options& /*options*/, at::IntArrayRef /*sizes*/, size_t /*field*/) const override {
    return optim::StateShape::kParameter;
  }
  bool needs_full(const Options& /*options*/) const override { return false; }
  double initial(const Options& /*options*/, size_t /*field*/) const override { return 0; }
  std::vector<double> advance(
      const Options& /*options*/,
      int64_t /*step*/,
      std::vector<float>& /*scalars*/) const override {
    return {};
  }
  void update(const Options& options, const optim::RuleCall& call) const override {
    const ElementwiseOptions& ours = checked(options, described.name);
    const py::gil_scoped_acquire gil;
    update_.get()(
        ours.group, ours.lr, call.parameters, call.gradients, call.state, call.steps, call.first);
  }
  void update_sharded(
      const Options& /*options*/, const optim::ShardedRuleCall& /*call*/) const override {
    LOCKSTEP_ASSERT(false, "an elementwise rule was asked to gather full parameters");
  }

 private:
  static optim::RuleTraits traits_of(const ElementwiseClass& described) {
    optim::RuleTraits traits = {
        .name = described.name.c_str(),
        .fields = {},
        .counts_steps = described.counts_steps,
        .calls_program = true};
    for (const std::string& field : described.fields) {
      traits.fields.push_back(field.c_str());
    }
    return traits;
  }

  Held<> update_;
};

class ElementwiseOptimizer final : public optim::FlatOptimizer {
 public:
  ElementwiseOptimizer(
      const ElementwiseClass& described,
      const std::vector<ElementwiseGroup>& groups,
      py::object update)
      : FlatOptimizer(
            std::make_shared<PythonRule>(described, std::move(update)),
            parameters_of(groups),
            options_of(groups.empty() ? py::dict() : groups.front().second, 0)) {
    for (size_t group = 0; group < groups.size(); ++group) {
      // torch's constructor drops options of unknown types.
      param_groups_[group].set_options(options_of(groups[group].second, group));
    }
    adopt_parameters();
  }

 private:
  static std::vector<torch::optim::OptimizerParamGroup> parameters_of(
      const std::vector<ElementwiseGroup>& groups) {
    std::vector<torch::optim::OptimizerParamGroup> all;
    for (const ElementwiseGroup& group : groups) {
      all.emplace_back(group.first);
    }
    return all;
  }
};

}  // namespace

std::shared_ptr<torch::optim::Optimizer> make_elementwise_optimizer(
    const ElementwiseClass& described,
    const std::vector<ElementwiseGroup>& groups,
    py::object update) {
  return std::make_shared<ElementwiseOptimizer>(described, groups, std::move(update));
}

void set_group_index(torch::optim::OptimizerOptions& options, size_t index) {
  if (auto* const ours = dynamic_cast<ElementwiseOptions*>(&options)) {
    ours->group = index;
  }
}

}  // namespace lockstep::python
