// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/optimizers.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/rule_optimizer.h"
#include "lockstep/optim/rules/adadelta.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/adamax.h"
#include "lockstep/optim/rules/asgd.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/lion.h"
#include "lockstep/optim/rules/nadam.h"
#include "lockstep/optim/rules/radam.h"
#include "lockstep/optim/rules/rmsprop.h"
#include "lockstep/optim/rules/rprop.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/state/optimizer_settings.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "python/bindings/elementwise_optimizer.h"
#include "python/bindings/json.h"

namespace lockstep::python {
namespace {

using OptimizerHolder = std::shared_ptr<torch::optim::Optimizer>;

/// The parameters of a group, and its options by name.
using PythonGroup = std::pair<std::vector<at::Tensor>, py::dict>;

struct PythonOptions final : torch::optim::OptimizerOptions {
  explicit PythonOptions(double the_lr) : lr(the_lr) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<PythonOptions>(*this);
  }
  double get_lr() const override { return lr; }
  void set_lr(const double rate) override { lr = rate; }
  double lr;
};

template <typename Rule>
OptimizerHolder make_rule_optimizer(const std::vector<PythonGroup>& groups) {
  std::vector<optim::ParameterGroup<typename Rule::Options>> all;
  for (const auto& [parameters, options] : groups) {
    auto& group = all.emplace_back();
    group.parameters = parameters;
    optim::options_from_json(
        Rule::named(group.options), to_json(options, Rule::traits().name), Rule::traits().name);
    Rule::check(group.options);
  }
  return std::make_shared<optim::RuleOptimizer<Rule>>(all);
}

template <typename Rule>
std::vector<std::string> option_names() {
  typename Rule::Options options;
  std::vector<std::string> names;
  for (const optim::NamedOption& option : Rule::named(options)) {
    names.emplace_back(option.name);
  }
  return names;
}

struct Maker {
  OptimizerHolder (*make)(const std::vector<PythonGroup>&);
  std::vector<std::string> (*option_names)();
};

template <typename... Rules>
std::map<std::string, Maker> makers_of() {
  return {{Rules::traits().name, {make_rule_optimizer<Rules>, option_names<Rules>}}...};
}

/// Lists the optimizers of lockstep::optim that Python's classes of that name become.
const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all = makers_of<
      optim::AdadeltaRule,
      optim::AdagradRule,
      optim::AdamRule,
      optim::AdamWRule,
      optim::AdamaxRule,
      optim::ASGDRule,
      optim::LAMBRule,
      optim::LionRule,
      optim::NAdamRule,
      optim::RAdamRule,
      optim::RMSpropRule,
      optim::RpropRule,
      optim::SGDRule>();
  return all;
}

/// Copies a Python value to an option. Returns false for a value of another type.
bool assign(const optim::NamedOption::Value& option, py::handle value) {
  const auto number = [](py::handle item, double& target) {
    const double converted = PyFloat_AsDouble(item.ptr());
    if (converted == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return false;
    }
    target = converted;
    return true;
  };
  return std::visit(
      [&](auto* target) {
        using Target = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<Target, double>) {
          return number(value, *target);
        } else if constexpr (std::is_same_v<Target, bool>) {
          *target = value.cast<bool>();
          return true;
        } else {
          if (!py::isinstance<py::sequence>(value) || py::len(value) != 2) {
            return false;
          }
          const py::sequence pair = py::reinterpret_borrow<py::sequence>(value);
          if constexpr (std::is_same_v<Target, std::pair<std::optional<double>, double>>) {
            const py::object first = pair[0];
            if (first.is_none()) {
              target->first.reset();
              return number(pair[1], target->second);
            }
            return number(first, target->first.emplace()) && number(pair[1], target->second);
          } else {
            return number(pair[0], std::get<0>(*target)) && number(pair[1], std::get<1>(*target));
          }
        }
      },
      option);
}

/// Copies the options that a program or scheduler may have changed in Python's param_groups.
void set_options(torch::optim::Optimizer& optimizer, const py::list& groups) {
  auto& targets = optimizer.param_groups();
  if (groups.size() != targets.size()) {
    throw ConfigError(
        "optimizer",
        fmt::format(
            "param_groups has {} groups; expected the {} that were prepared; add groups with "
            "add_param_group",
            groups.size(),
            targets.size()));
  }
  auto* const flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer);
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto group = groups[i].cast<py::dict>();
    auto& options = targets[i].options();
    if (flat != nullptr) {
      for (const optim::NamedOption& option : flat->rule().named_options(options)) {
        PyObject* const value = PyDict_GetItemString(group.ptr(), option.name);
        if (value != nullptr && std::string_view(option.name) != "lr" &&
            !assign(option.value, value)) {
          throw ConfigError(
              "optimizer",
              fmt::format(
                  "param_groups[{}]['{}'] is {}; expected a value of the type that it was prepared "
                  "with",
                  i,
                  option.name,
                  std::string(py::repr(value))));
        }
      }
    }
    // An optimizer class of the program may have no learning rate.
    const double lr = group.contains("lr") ? group["lr"].cast<double>() : options.get_lr();
    if (options.get_lr() != lr) {
      options.set_lr(lr);
    }
  }
}

/// Names parameters by their index over all groups, as Python's state_dict does.
ParameterName index_names(torch::optim::Optimizer& optimizer) {
  std::unordered_map<const void*, std::string> names;
  size_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      names.emplace(parameter.unsafeGetTensorImpl(), fmt::format("{}", index++));
    }
  }
  return [names = std::move(names)](const at::Tensor& parameter) {
    return names.at(parameter.unsafeGetTensorImpl());
  };
}

py::dict dict_of(const NamedTensors& tensors) {
  py::dict dict;
  for (const NamedTensor& item : tensors) {
    dict[py::str(item.name)] = item.tensor;
  }
  return dict;
}

NamedTensors tensors_of_dict(const py::dict& dict) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : dict) {
    tensors.push_back({name.cast<std::string>(), tensor.cast<at::Tensor>()});
  }
  return tensors;
}

void bind_inner(py::module_& module) {
  py::class_<torch::optim::Optimizer, OptimizerHolder>(module, "InnerOptimizer")
      .def("set_options", &set_options, "Copies the options of Python's param_groups.")
      .def(
          "step",
          [](torch::optim::Optimizer& optimizer) { optimizer.step(); },
          NoGil(),
          "Performs one update, outside of an Accelerator.")
      .def(
          "add_group",
          [](torch::optim::Optimizer& optimizer,
             const std::vector<at::Tensor>& parameters,
             const py::list& groups) {
            optimizer.add_param_group(torch::optim::OptimizerParamGroup(parameters));
            auto& all = optimizer.param_groups();
            set_group_index(all.back().options(), all.size() - 1);
            set_options(optimizer, groups);
            if (auto* const flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer)) {
              flat->adopt_parameters();
            }
          })
      .def(
          "state_tensors",
          [](torch::optim::Optimizer& optimizer) {
            return dict_of(optimizer_tensors(optimizer, index_names(optimizer)));
          },
          "Returns {'0.exp_avg': tensor, ...}.")
      .def(
          "settings",
          [](torch::optim::Optimizer& optimizer) {
            return from_json(optimizer_settings(optimizer));
          })
      .def(
          "load_state",
          [](torch::optim::Optimizer& optimizer,
             const py::dict& tensors,
             const py::dict& settings) {
            check_optimizer(
                optimizer,
                index_names(optimizer),
                tensors_of_dict(tensors),
                to_json(settings, "load_state_dict"),
                "load_state_dict")();
          });
  module.def("make_optimizer", [](const std::string& name, const std::vector<PythonGroup>& groups) {
    return makers().at(name).make(groups);
  });
  module.def("optimizer_options", [](const std::string& name) {
    const auto found = makers().find(name);
    return found == makers().end() ? std::nullopt : std::optional(found->second.option_names());
  });
  // Returns the optimizer of a ds_config.json's optimizer.type, in lower case; none for a type
  // without parameter groups of the program.
  module.def("optimizer_of_type", [](const std::string& type) -> std::optional<std::string> {
    for (const auto& [name, maker] : makers()) {
      if (lower(name) == type) {
        return name;
      }
    }
    return std::nullopt;
  });
  module.def(
      "python_optimizer",
      [](const std::vector<std::pair<std::vector<at::Tensor>, double>>& groups,
         py::object step,
         py::object get_state,
         py::object set_state) -> OptimizerHolder {
        return std::make_shared<PythonOptimizer>(
            groups, std::move(step), std::move(get_state), std::move(set_state));
      });
  module.def(
      "elementwise_optimizer",
      [](const std::string& name,
         const std::vector<std::string>& fields,
         bool counts_steps,
         const std::vector<ElementwiseGroup>& groups,
         py::object update) {
        return make_elementwise_optimizer(
            {.name = name, .fields = fields, .counts_steps = counts_steps},
            groups,
            std::move(update));
      },
      "Returns an optimizer whose ranks can update shard slices, by a function of Python's.");
}

void bind_prepared(py::module_& module) {
  py::class_<Optimizer>(module, "PreparedOptimizer")
      .def("step", py::overload_cast<>(&Optimizer::step), NoGil())
      .def(
          "step_with_closure",
          [](Optimizer& optimizer, py::object closure) {
            const Held<> held(std::move(closure));
            const py::gil_scoped_release no_gil;
            return optimizer.step([&held] {
              const py::gil_scoped_acquire gil;
              return held.get()().cast<at::Tensor>();
            });
          })
      .def("zero_grad", &Optimizer::zero_grad, NoGil())
      .def_property_readonly("step_was_skipped", &Optimizer::step_was_skipped)
      .def_property_readonly("steps", &Optimizer::steps)
      .def_property_readonly("is_sharded", &Optimizer::is_sharded)
      .def_property_readonly("parameters", &Optimizer::parameters);
}

[[noreturn]] void refuse_archive() {
  throw ConfigError(
      "optimizer", "an archive of libtorch cannot hold a Python optimizer; use save_state");
}

}  // namespace

AnyCheckpointable checkpointable_of(py::object get, py::object set, const void* id) {
  struct Empty {
    ObjectState state_dict() const { return {}; }
    void load_state_dict(const ObjectState& /*state*/) {}
  };
  static Empty empty;
  AnyCheckpointable object(empty);
  object.id = id;
  object.state_dict = [held = Held<>(std::move(get))] {
    const py::gil_scoped_acquire gil;
    const auto state = held.get()().cast<std::pair<py::object, py::dict>>();
    return ObjectState(
        to_json(state.first, "the state of a Python object"), tensors_of_dict(state.second));
  };
  object.load_state_dict = [held = Held<>(std::move(set))](const ObjectState& state) {
    const py::gil_scoped_acquire gil;
    held.get()(from_json(state.values), dict_of(state.tensors));
  };
  return object;
}

PythonOptimizer::PythonOptimizer(
    const std::vector<std::pair<std::vector<at::Tensor>, double>>& groups,
    py::object step,
    py::object get_state,
    py::object set_state)
    : Optimizer(
          std::vector<torch::optim::OptimizerParamGroup>(),
          std::make_unique<PythonOptions>(groups.empty() ? 0 : groups.front().second)),
      step_(std::move(step)),
      state_(checkpointable_of(std::move(get_state), std::move(set_state), this)) {
  for (const auto& [parameters, lr] : groups) {
    add_param_group(torch::optim::OptimizerParamGroup(parameters));
    param_groups_.back().set_options(std::make_unique<PythonOptions>(lr));
  }
}

at::Tensor PythonOptimizer::step(LossClosure closure) {
  const py::gil_scoped_acquire gil;
  py::object loss;
  if (closure) {
    loss = step_.get()(py::cpp_function([closure = std::move(closure)] {
      const c10::AutoGradMode with_gradients(true);
      const py::gil_scoped_release no_gil;
      return closure();
    }));
  } else {
    loss = step_.get()();  // A program's own class may take no closure.
  }
  return THPVariable_Check(loss.ptr()) ? loss.cast<at::Tensor>() : at::Tensor();
}

void PythonOptimizer::save(torch::serialize::OutputArchive& /*archive*/) const {
  refuse_archive();
}

void PythonOptimizer::load(torch::serialize::InputArchive& /*archive*/) {
  refuse_archive();
}

GivenOptimizer given_optimizer_of(const OptimizerHolder& optimizer) {
  GivenOptimizer given{.optimizer = optimizer};
  if (const auto* const python = dynamic_cast<PythonOptimizer*>(optimizer.get())) {
    given.own_state = python->own_state();
  }
  return given;
}

void bind_optimizers(py::module_& module) {
  bind_inner(module);
  bind_prepared(module);
}

}  // namespace lockstep::python
