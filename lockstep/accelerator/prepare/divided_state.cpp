// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/divided_state.h"

#include <map>
#include <string>

#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

namespace lockstep::internal {
namespace {

/// A parameter of which this process has a part.
struct Divided {
  at::Tensor parameter;
  tensor_parallel::TensorParallel* division;
};

/// Returns the divided parameters by their names in checkpoints.
std::map<std::string, Divided> divided_by_name(const PreparedObjects& objects) {
  std::map<std::string, Divided> divided;
  for (const PreparedModel& model : objects.models) {
    for (const NamedTensor& item : model.parameters()) {
      if (auto* division = objects.division_of(item.tensor)) {
        divided.emplace(model.prefix + item.name, Divided{item.tensor, division});
      }
    }
  }
  return divided;
}

/// Returns the parameter that the optimizer state "fc.weight.exp_avg" is of, if it is divided.
const Divided* owner_of(const std::map<std::string, Divided>& divided, const std::string& state) {
  const auto found = divided.find(state.substr(0, state.rfind('.')));
  return found == divided.end() ? nullptr : &found->second;
}

}  // namespace

NamedTensors full_model_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const c10::AutoGradMode no_grad(false);
  NamedTensors all;
  for (const NamedTensor& item : own) {
    tensor_parallel::TensorParallel* const division = objects.division_of(item.tensor);
    const at::Tensor full =
        division ? division->full(item.tensor, item.tensor.detach()) : item.tensor;
    if (keeps) {
      all.push_back({item.name, full});
    }
  }
  return all;
}

NamedTensors own_model_tensors(
    const PreparedObjects& objects, const NamedTensors& current, NamedTensors saved) {
  std::map<std::string, at::Tensor> parameters;
  for (const NamedTensor& item : current) {
    parameters.emplace(item.name, item.tensor);
  }
  for (NamedTensor& item : saved) {
    const auto found = parameters.find(item.name);
    tensor_parallel::TensorParallel* const division =
        found == parameters.end() ? nullptr : objects.division_of(found->second);
    // Another shape is refused later, by name.
    if (division && item.tensor.sizes() == division->full_sizes(found->second)) {
      item.tensor = division->own_part(found->second, item.tensor);
    }
  }
  return saved;
}

NamedTensors full_optimizer_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const std::map<std::string, Divided> divided = divided_by_name(objects);
  NamedTensors all;
  for (const NamedTensor& item : own) {
    const Divided* const owner = owner_of(divided, item.name);
    const bool is_part = owner != nullptr && item.tensor.sizes() == owner->parameter.sizes();
    const at::Tensor full =
        is_part ? owner->division->full(owner->parameter, item.tensor) : item.tensor;
    if (keeps) {
      all.push_back({item.name, full});
    }
  }
  return all;
}

NamedTensors own_optimizer_tensors(const PreparedObjects& objects, NamedTensors saved) {
  const std::map<std::string, Divided> divided = divided_by_name(objects);
  for (NamedTensor& item : saved) {
    const Divided* const owner = owner_of(divided, item.name);
    if (owner != nullptr && item.tensor.sizes() == owner->division->full_sizes(owner->parameter)) {
      item.tensor = owner->division->own_part(owner->parameter, item.tensor);
    }
  }
  return saved;
}

int64_t full_bytes(const PreparedObjects& objects, const NamedTensors& own) {
  int64_t bytes = 0;
  for (const NamedTensor& item : own) {
    tensor_parallel::TensorParallel* const division = objects.division_of(item.tensor);
    const int64_t elements =
        division ? c10::multiply_integers(division->full_sizes(item.tensor)) : item.tensor.numel();
    bytes += elements * static_cast<int64_t>(item.tensor.element_size());
  }
  return bytes;
}

}  // namespace lockstep::internal
