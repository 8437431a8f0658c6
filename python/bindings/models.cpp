// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/models.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::python {
namespace {

/// The attribute of layers whose experts processes divide: the number of processes.
constexpr const char* kExpertRanks = "_lockstep_expert_ranks";
/// The attribute of parameters whose rows are experts.
constexpr const char* kStackedExperts = "_lockstep_stacked_experts";

/// Returns the parameters under all of their names. The caller has the GIL.
NamedTensors parameters_of_python(const py::object& module) {
  NamedTensors all;
  const py::object items = module.attr("named_parameters")(py::arg("remove_duplicate") = false);
  for (const py::handle item : items) {
    const auto pair = item.cast<std::pair<std::string, at::Tensor>>();
    all.push_back({pair.first, pair.second});
  }
  return all;
}

/// Returns the buffers that state_dict() has. The caller has the GIL.
NamedTensors buffers_of_python(const py::object& module) {
  NamedTensors all;
  for (const py::handle item : module.attr("named_modules")()) {
    const auto [prefix, part] = item.cast<std::pair<std::string, py::object>>();
    const py::object transient = part.attr("_non_persistent_buffers_set");
    for (const auto& [name, buffer] : part.attr("_buffers").cast<py::dict>()) {
      if (!buffer.is_none() && !transient.contains(name)) {
        std::string full_name = prefix.empty() ? "" : prefix + ".";
        full_name += name.cast<std::string>();
        all.push_back({std::move(full_name), buffer.cast<at::Tensor>()});
      }
    }
  }
  return all;
}

/// Returns the class of a module: with C++'s namespace for those of torch.nn, else its name alone.
std::string class_of_python(const py::object& module) {
  const py::handle type = py::type::handle_of(module);
  const bool is_torchs =
      py::str(type.attr("__module__")).cast<std::string>().starts_with("torch.nn.");
  return (is_torchs ? "torch::nn::" : "") + py::str(type.attr("__name__")).cast<std::string>();
}

internal::NamedClasses classes_of_python(const py::object& module) {
  internal::NamedClasses all;
  for (const py::handle item : module.attr("named_modules")()) {
    const auto [path, part] = item.cast<std::pair<std::string, py::object>>();
    all.emplace_back(path, class_of_python(part));
  }
  return all;
}

/// Sets the evaluation mode, and returns a function that restores the modes.
std::function<void()> evaluate_python(const py::object& module) {
  std::vector<std::pair<py::object, py::object>> modes;
  for (const py::handle item : module.attr("modules")()) {
    modes.emplace_back(py::reinterpret_borrow<py::object>(item), item.attr("training"));
  }
  module.attr("eval")();
  const Held held{py::cast(std::move(modes))};
  return [held] {
    const py::gil_scoped_acquire gil;
    for (const py::handle mode : held.get()) {
      mode[py::int_(0)].attr("training") = mode[py::int_(1)];
    }
  };
}

/// Returns the plan that Python has given a module, as a dictionary of TensorParallelOptions.
std::optional<TensorParallelOptions> tensor_parallel_of(const py::object& module) {
  const py::object given = py::getattr(module, "_lockstep_tensor_parallel", py::none());
  if (given.is_none()) {
    return std::nullopt;
  }
  TensorParallelOptions options{
      .sequence_parallel = given["sequence_parallel"].cast<bool>(),
      .without_example = given["example"].is_none()};
  for (const py::handle item : given["plan"]) {
    const auto [modules, style, fused] =
        item.cast<std::tuple<std::string, std::string, std::vector<int64_t>>>();
    options.plan.push_back({modules, parse_tensor_style(style, "prepare"), fused});
  }
  if (!options.without_example) {
    options.example = [example = Held<>{given["example"]}] {
      const py::gil_scoped_acquire gil;
      return example.get()().cast<at::Tensor>();
    };
  }
  return options;
}

/// Returns the experts of a module, as DeepSpeed marks their parameters. Layers have their number
/// of ranks.
expert_parallel::ModelExperts experts_of_python(const py::object& module) {
  expert_parallel::ModelExperts experts;
  for (const NamedTensor& item : parameters_of_python(module)) {
    const py::object parameter = py::cast(item.tensor);
    if (!py::getattr(parameter, "allreduce", py::bool_(true)).cast<bool>()) {
      experts.parameters.push_back(item);
      if (py::hasattr(parameter, kStackedExperts)) {
        experts.stacked.insert(item.name);
      }
    }
  }
  for (const py::handle part : module.attr("modules")()) {
    const py::object ranks = py::getattr(part, kExpertRanks, py::none());
    if (!ranks.is_none()) {
      experts.ranks.push_back(ranks.cast<int>());
    }
  }
  return experts;
}

}  // namespace

int expert_ranks_of(const py::object& module) {
  int most = 1;
  for (const int ranks : experts_of_python(module).ranks) {
    most = std::max(most, ranks);
  }
  return most;
}

void give_expert_group(const py::object& module, const Group& group) {
  for (const py::handle part : module.attr("modules")()) {
    if (py::hasattr(part, kExpertRanks)) {
      part.attr("_set_expert_group")(group);
    }
  }
}

const void* id_of(const py::handle& module) {
  return module.ptr();
}

internal::GivenModel given_model(const py::object& module) {
  // Weak, since a module may refer to the Accelerator that owns the C++ one: see _weak.py.
  const Held<> reference{py::weakref(module)};
  const auto with_gil = [&reference](auto function) {
    return [reference, function] {
      const py::gil_scoped_acquire gil;
      const py::object alive = reference.get()();
      if (alive.is_none()) {
        PyErr_SetString(
            PyExc_ReferenceError, "a prepared model was freed while its Accelerator was in use");
        throw py::error_already_set();
      }
      return function(alive);
    };
  };
  return {
      .id = id_of(module),
      .parameters = with_gil(parameters_of_python),
      .buffers = with_gil(buffers_of_python),
      .classes = with_gil(classes_of_python),
      .evaluate = with_gil(evaluate_python),
      .tensor_parallel = tensor_parallel_of(module),
      .experts = with_gil(experts_of_python)};
}

NamedTensors tensors_of_python(const py::object& module, bool with_frozen) {
  NamedTensors all = parameters_of_python(module);
  if (!with_frozen) {
    std::erase_if(all, [](const NamedTensor& item) { return !item.tensor.requires_grad(); });
  }
  for (NamedTensor& buffer : buffers_of_python(module)) {
    all.push_back(std::move(buffer));
  }
  return all;
}

}  // namespace lockstep::python
